"""Journals, pages and exports of Vespiary as Spark DataFrames.

`register(spark)` makes the format `vespiary` known to a session. The package adapts
`vespiary_codec` to Spark and never imports the broker: Spark distributes, sorts, joins and retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the format `vespiary` known to a session.

    Where the package was installed from a wheel, Spark finds the format by itself.

    Args:
        spark: The session.

    Raises:
        SparkUnusable: PySpark is of a version that the pipeline is not made for.
    """
    from vespiary_pipeline.session import check_pyspark

    check_pyspark()
    # Not at the top: the transforms and the schema are of use without a session.
    from vespiary_pipeline.source import VespiarySource

    spark.dataSource.register(VespiarySource)
