"""`vespiary-pipeline import`: an export, files of rows or a broker's files into a new data folder.

Owns the command. Must never import Spark before it is needed. Called by `cli`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from vespiary_pipeline import cli_common, targets

_FORMS = ("parquet", "json", "csv")


@click.command("import")
@click.argument("path", metavar="SOURCE")
@click.option("--to", "target", required=True, help="Data folder to make: missing or empty.")
@click.option("--address", default="", help="Address of rows that do not say theirs.")
@click.option("--queue", default="", help="Queue of rows that do not say theirs.")
@click.option(
    "--routing-type",
    type=click.Choice(["anycast", "multicast"]),
    default="anycast",
    show_default=True,
    help="Of queues of which nothing else says it.",
)
@click.option("--bindings", default="", help="Data folder whose addresses and queues are taken.")
@click.option("--file-size", default="10m", show_default=True, help="Of each journal file.")
@click.option("--snapshot", default="", help="Read the copy of this name.")
@click.option("--format", "form", type=click.Choice(_FORMS), help="How rows are written.")
@click.option("--order-by", multiple=True, help="Column that rows are sorted by. Repeatable.")
@cli_common.max_body_option
@click.option("--json", "is_json", is_flag=True, help="An object a line.")
@cli_common.told
def import_(
    path: str,
    target: str,
    address: str,
    queue: str,
    routing_type: str,
    bindings: str,
    file_size: str,
    snapshot: str,
    form: str | None,
    order_by: tuple[str, ...],
    max_body_bytes: str,
    is_json: bool,
) -> None:
    """Make the data folder of a broker from SOURCE.

    SOURCE is an export of this program, a folder of Parquet, JSON or CSV files with the columns of
    an import, or the files of another broker, of which the messages that it would recover are
    taken. The folder is there whole or not at all.
    """
    from vespiary_pipeline.imports.folder import check_empty
    from vespiary_pipeline.imports.import_options import read_import_options
    from vespiary_pipeline.jobs.importing import ImportSource, kind_of, run_import

    source = ImportSource(
        path=path, snapshot=snapshot, form=form or "", order_by=order_by,
        max_body_bytes=max_body_bytes,
    )  # fmt: skip
    kind_of(source)  # before Spark takes its seconds
    given = {
        "address": address, "queue": queue, "routingType": routing_type, "bindings": bindings,
        "fileSize": file_size,
    }  # fmt: skip
    options = {name: text for name, text in given.items() if text}
    folder = Path(read_import_options({**options, "path": target}).path)
    check_empty(folder)
    targets.folder(target)
    with cli_common.working(f"importing {path}", is_json=is_json) as spark:
        done = run_import(spark, source, folder, options)
    if is_json:
        click.echo(json.dumps({name: getattr(done, name) for name in done.__slots__}))
    else:
        click.echo(f"{path}: {done.messages} messages in {done.files} files written to {target}")
