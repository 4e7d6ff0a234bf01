"""One Spark session, and so one JVM, for all tests of a process: it takes seconds to start.

Tests without the marker `verify` are the core that CI runs at every change. They use this session
alone: for them there is no other Java (`no_other_java`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from vespiary_pipeline import cli, cli_common
from vespiary_pipeline.session import check_java
from vespiary_spec.errors import SparkUnusable

_WITHOUT_JAVA = Path(__file__).parent


def _need_java() -> None:
    """Skip where Spark's Java is missing or too old; in CI that is a failure."""
    try:
        check_java()
    except SparkUnusable as unusable:
        if os.environ.get("CI") == "true":
            pytest.fail(str(unusable))
        pytest.skip(str(unusable))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores on loopback, whose files go with it."""
    _need_java()
    home = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Also for the JVMs that tests start: in a minute, C2 costs more than its code saves.
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    builder = SparkSession.builder.master("local[2]").appName("vespiary tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_other_java(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide Java from the core tests and their children: a second JVM fails, here and in CI."""
    if request.node.get_closest_marker("verify") is None:
        monkeypatch.setenv("JAVA_HOME", str(_WITHOUT_JAVA))


@pytest.fixture(autouse=True)
def no_cached_frames(spark: SparkSession) -> Iterator[None]:
    """Forget what a test's jobs persisted: Spark compares every later plan with all of it."""
    yield
    spark.catalog.clearCache()


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`vespiary-pipeline` with these words, in the tests' session; it has to end with `code`."""

    @contextmanager
    def session() -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(cli_common, "start_session", session)

    def invoke(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli.main, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    return invoke
