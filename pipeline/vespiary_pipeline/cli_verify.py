"""`vespiary-pipeline verify`: many journals looked at in parallel.

Owns the command. Called by `cli`.
"""

from __future__ import annotations

import json
import sys

import click

from vespiary_pipeline.cli_common import told, working


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--json", "is_json", is_flag=True, help="An object for each journal, a line each.")
@click.option("--snapshot", default="", help="Look at the copies of this name.")
@told
def verify(paths: tuple[str, ...], is_json: bool, snapshot: str) -> None:
    """Look at every block, chain and transaction of journals, pages and large bodies.

    PATH is a data folder, a journal, kept copies, or a folder of such. Nothing is changed. A torn
    tail is the end of unconfirmed work, and no damage. Exit codes: 0 good or torn, 1 damaged, or
    unread: it could not be looked at.
    """
    from vespiary_pipeline.jobs.verifying import folders_in as found_in
    from vespiary_pipeline.jobs.verifying import verify as verified

    options = {"snapshot": snapshot} if snapshot else {}
    folders = found_in(paths, options)  # before Spark takes its seconds
    doing = f"verifying {folders[0]}" if len(folders) == 1 else f"verifying {len(folders)} folders"
    with working(doing, is_json=is_json) as spark:
        results = verified(spark, folders, options)
    for one in results:
        if is_json:
            click.echo(json.dumps(one.to_json()))
            continue
        click.echo(f"{one.folder}: {one.message}")
        for damage in one.damage:
            click.echo(f"  {damage.place}: {damage.what}")
    bad = [one for one in results if one.is_bad]
    if not is_json and len(results) > 1:
        click.echo(f"{len(results) - len(bad)} of {len(results)} are good")
    sys.exit(1 if bad else 0)
