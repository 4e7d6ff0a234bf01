"""`vespiary-pipeline import`: rows of files to the data folder of a new broker.

Owns the command. Called by `cli`.
"""

from __future__ import annotations

import json
from typing import Any

import click

from vespiary_pipeline.cli_common import start_session, told


@click.command("import")
@click.argument("source")
@click.option("--to", "target", required=True, help="The data folder: missing, or empty.")
@click.option("--format", "form", type=click.Choice(["parquet", "json", "csv"]), default=None,
              help="SOURCE has rows in files of this form.")  # fmt: skip
@click.option("--address", default="", help="Address of rows that do not say theirs.")
@click.option("--queue", default="", help="Queue of rows that do not say theirs.")
@click.option("--bindings", default="", help="Data folder whose addresses and queues are taken.")
@click.option("--topic", is_flag=True, help="New queues are those of subscriptions.")
@click.option("--file-size", default="", help="Of each journal file, as 10m.")
@click.option("--json", "is_json", is_flag=True, help="Say the end as an object.")
@told
def import_command(
    source: str, target: str, form: str | None, is_json: bool, topic: bool, **given: Any
) -> None:
    """Make the data folder of a broker of SOURCE.

    SOURCE is a folder of exports, a broker's data folder or a copy of one (its live messages keep
    their numbers), or with --format any folder of rows. The folder is there whole or not at all.
    """
    from vespiary_pipeline.imports.import_options import read_import_options
    from vespiary_pipeline.jobs.importing import check_source, import_rows

    wanted = {
        "address": given["address"],
        "queue": given["queue"],
        "bindings": given["bindings"],
        "fileSize": given["file_size"],
        "routingType": "multicast" if topic else "",
    }
    options = {name: value for name, value in wanted.items() if value}
    read_import_options({**options, "path": target})  # before Spark takes its seconds
    check_source(source, form or "")
    with start_session() as spark:
        import_rows(spark, source, form or "", target, options)
    if is_json:
        click.echo(json.dumps({"source": source, "to": target}))
    else:
        click.echo(f"{target} is there: vespiary run --data {target}")
