"""`vespiary-pipeline diff`: what waits in one broker's files and not in another's.

Owns the command. Called by `cli`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from vespiary_pipeline import targets
from vespiary_pipeline.cli_common import show, shown_options, told, working


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "is_json", is_flag=True, help="An object a line: queues, or rows.")
@click.option("--by", type=click.Choice(["place", "content"]), default="place", show_default=True,
              help="By number in the queue, or equal messages wherever they stand.")  # fmt: skip
@click.option("--rows", "with_rows", is_flag=True, help="Show each message that differs.")
@shown_options
@told
def diff(a: str, b: str, is_json: bool, by: str, with_rows: bool, **shown: Any) -> None:
    """Compare the messages that wait in A and in B: data folders, copies, journals or exports.

    Headers and bodies are compared. Exit codes: 0 the same, 1 different or an error, 2 usage.
    """
    from vespiary_pipeline.jobs.broker_files import BrokerFiles
    from vespiary_pipeline.jobs.diffing import by_queue, contents, differences
    from vespiary_pipeline.jobs.failures import spark_failures
    from vespiary_pipeline.layout import find_places
    from vespiary_pipeline.options import read_options

    for path in (a, b):  # before Spark takes its seconds
        find_places(read_options({"path": path}))
    if shown["target"]:
        targets.new_folder(shown["target"])
    with (
        working(f"comparing {a}, {b}", is_json=is_json) as spark,
        spark_failures(a, shown["target"]),
    ):
        left, right = (contents(BrokerFiles(spark, path)) for path in (a, b))
        rows = differences(left, right, by).persist()
        different = rows.where("kind <> 'same'")
        if with_rows or shown["target"]:
            show(different, ("queue", "kind", "sequence"), is_json=is_json, **shown)
        elif is_json:
            for row in by_queue(rows).collect():
                click.echo(json.dumps(row.asDict()))
        else:
            show(by_queue(rows), ("queue",), is_json=False, **shown)
        is_different = not different.isEmpty()
    sys.exit(1 if is_different else 0)
