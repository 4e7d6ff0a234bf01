"""`kubectl vespiary upgrade`: shows an upgrade, and asks the operator for what it does with one.

Owns: its options and exit codes. Never: changes a Broker before it has said what will happen;
decides what will (`upgrade_view` does). Called by: `program`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.console import Console

from vespiary_operator import kinds
from vespiary_operator.kubectl import upgrade_view
from vespiary_operator.kubectl.access import path_of
from vespiary_operator.kubectl.explanation import Document
from vespiary_operator.kubectl.place import OUTPUT, Place, broker_of, show_json, table


@click.command()
@click.argument("name")
@click.option("--to", "version", metavar="VERSION", help="Ask for this version.")
@click.option("--image", metavar="IMAGE", help="Ask for this image.")
@click.option(
    "--approve", "act", flag_value="approve", help="Let the others follow (strategy Supervised)."
)
@click.option(
    "--retry", "act", flag_value="retry", help="Try a version again that was taken back or refused."
)
@click.option("--back", "act", flag_value="back", help="Ask for the version before.")
@click.option("--pause", "act", flag_value="pause", help="Stop every change where it stands.")
@click.option("--resume", "act", flag_value="resume", help="Go on after `--pause`.")
@click.option(
    "--dry-run", is_flag=True, help="Say what would happen; the API server checks it, no more."
)
@OUTPUT
@click.pass_obj
def upgrade(
    place: Place,
    name: str,
    version: str | None,
    image: str | None,
    act: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Show where an upgrade of a Broker stands, start one, or steer it.

    Without an option that changes something: the stage, the way, the sentence and the next command.
    Exit code 1 if it was refused, taken back or stands still. With one: what will happen, and the
    change. It is refused if the Broker has changed since it was read.
    """
    asked = [each for each in (version, image, act) if each]
    if len(asked) > 1:
        raise click.UsageError("--to, --image and the others exclude each other")
    if dry_run and not asked:
        raise click.UsageError("--dry-run needs something to try, for instance --to VERSION")
    api = place.api()
    document = broker_of(api, name)
    if not asked:
        found = upgrade_view.view(document)
        if output == "json":
            show_json(found)
        else:
            _show(found)
        sys.exit(0 if found.good else 1)
    try:
        change = _change(document, version or "", image or "", act or "")
    except upgrade_view.NotPossibleError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    if output == "json":
        show_json({"lines": change.lines, "patch": change.patch, "dryRun": dry_run})
    else:
        click.echo("\n".join(change.lines))
    api.merge(path_of(kinds.BROKER, api.namespace, name), change.patch, is_tried=dry_run)
    if output != "json":
        done = f"{name} would be changed (dry run)" if dry_run else f"{name} was changed"
        click.echo(f"{done}.\nnext: kubectl vespiary -n {api.namespace} upgrade {name}")


def _change(document: Document, version: str, image: str, act: str) -> upgrade_view.Change:
    if version or image:
        return upgrade_view.start(document, version=version, image=image)
    if act == "retry":
        return upgrade_view.retry(document, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    acts: dict[str, Callable[[Document], upgrade_view.Change]] = {
        "approve": upgrade_view.approve,
        "back": upgrade_view.back,
        "pause": upgrade_view.pause,
        "resume": upgrade_view.resume,
    }
    return acts[act](document)


def _show(found: upgrade_view.View) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not found.stage:
        console.print(f"{found.name} has had no upgrade. {found.sentence}".strip())
    else:
        console.print(f"{found.name}: {found.from_version} -> {found.to_version}")
        console.print(f"{found.stage} since {found.since}: {found.sentence}")
        if found.canary:
            console.print(f"first broker: {found.canary}")
        shown = table("STAGE", "STATE")
        for gate in found.gates:
            shown.add_row(gate.stage, gate.state)
        console.print(shown)
    if found.paused_by:
        console.print(f"Nothing is changed while {found.paused_by} is true.")
    if found.next:
        console.print(f"next: {found.next}")
