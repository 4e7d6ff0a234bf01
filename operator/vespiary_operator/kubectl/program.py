"""The commands of `kubectl vespiary`.

Owns: arguments, tables, exit codes: 0 good, 1 found bad or refused, 2 usage.
Never: decides what is good (`explanation` does). Called by: `kubectl-vespiary`, found by kubectl.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from vespiary_operator import kinds, names, pods
from vespiary_operator.kubectl import bundle, explanation
from vespiary_operator.kubectl.access import Access, items, path_of
from vespiary_operator.kubectl.place import OUTPUT, Place, broker_of, show_json, table
from vespiary_operator.kubectl.upgrade_command import upgrade
from vespiary_spec import configuration
from vespiary_spec.errors import ReconcileError
from vespiary_spec.version import VERSION


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Run a command; a refusal is one sentence and exit code 1."""
        try:
            return super().invoke(context)
        except ReconcileError as error:
            click.echo(f"error: {error}", err=True)
            context.exit(1)


@click.group(cls=_Commands, name="kubectl vespiary")
@click.option("--context", "context_name", help="Context of the kubeconfig.")
@click.option("-n", "--namespace", help="Namespace; the context's unless it is given.")
@click.version_option(VERSION, prog_name="kubectl-vespiary")
@click.pass_context
def program(context: click.Context, context_name: str | None, namespace: str | None) -> None:
    """Look at Brokers with your own rights, and ask the operator for what it does."""
    connect = context.obj if callable(context.obj) else Access
    context.obj = Place(connect, context_name, namespace)


@program.command()
@click.argument("name", required=False)
@OUTPUT
@click.pass_obj
def status(place: Place, name: str | None, output: str) -> None:
    """Say of each Broker what is asked for, what is there, what stands in the way, and what to do.

    Exit code 1 if one of them is not Ready.
    """
    api = place.api()
    found = [broker_of(api, name)] if name else items(api, path_of(kinds.BROKER, api.namespace))
    explained = [explanation.explain(broker) for broker in found]
    if output == "json":
        show_json(explained)
    else:
        _show_status(explained, api.namespace)
    sys.exit(0 if all(one.ready for one in explained) else 1)


def _show_status(explained: list[explanation.Explanation], namespace: str) -> None:
    console = Console(highlight=False)
    if not explained:
        console.print(f"There is no Broker in the namespace {namespace}.")
        return
    made = table("BROKER", "READY", "VERSION", "BLOCKED BY", "REASON")
    for one in explained:
        shown = f"{one.actual}/{one.desired}"
        made.add_row(one.name, shown, one.version, one.blocked_by or "-", one.reason or "-")
    console.print(made)
    for one in explained:
        if one.sentence:
            console.print(f"\n{one.name}: {one.sentence}", markup=False, soft_wrap=True)
        if one.next:
            console.print(f"next: {one.next}", markup=False, soft_wrap=True)


@program.command()
@click.argument("name")
@OUTPUT
@click.pass_obj
def verify(place: Place, name: str, output: str) -> None:
    """Show what was verified about each volume of a Broker and about its nodes.

    Exit code 1 if anything was refused or has yet to be verified.
    """
    api = place.api()
    findings = explanation.verified(broker_of(api, name))
    if output == "json":
        show_json(findings)
    else:
        shown = table("POD", "WHAT", "VERDICT", "FILESYSTEM", "")
        for one in findings:
            shown.add_row(one.pod or name, one.what, one.verdict, one.filesystem, one.sentence)
        Console(highlight=False).print(shown)
        if not findings:
            click.echo("No broker has looked at its volumes yet.", err=True)
    sys.exit(0 if explanation.is_good(findings) else 1)


@program.command()
@click.argument("name")
@click.argument("tool", type=click.Choice(["info", "verify"]))
@click.option("--pod", help="Pod to ask; the first broker unless it is given.")
@click.option("--volume", default="journal", help="Volume to look at.")
@click.pass_obj
def journal(place: Place, name: str, tool: str, pod: str | None, volume: str) -> None:
    """Run `vespiary journal info` or `verify`, which only read, inside a Broker's pod.

    Exit code that of the tool: 0 good, 1 damaged.
    """
    api = place.api()
    selector = names.selector(
        {names.LABEL_INSTANCE: name, names.LABEL_COMPONENT: names.COMPONENT_BROKER}
    )
    running = items(api, path_of(kinds.POD, api.namespace), labelSelector=selector)
    known = sorted((one for one in running if pods.ordinal(one) >= 0), key=pods.ordinal)
    chosen = next((one for one in known if pod is None or pods.name(one) == pod), None)
    if chosen is None:
        shown = ", ".join(pods.name(one) for one in known) or "none"
        raise click.UsageError(f"the Broker {name} has no such pod; there are: {shown}")
    folder = f"{configuration.VOLUME_ROOT}/{volume}"
    command = ["vespiary", "journal", tool, folder]
    code, printed = api.execute(pods.name(chosen), names.BROKER_CONTAINER, command)
    click.echo(printed, nl=False)
    sys.exit(code)


@program.command()
@click.argument("name")
@click.option(
    "--to", "replicas", type=click.IntRange(1), help="Brokers that stay; one less by default."
)
@click.pass_obj
def drain(place: Place, name: str, replicas: int | None) -> None:
    """Have the last brokers of a Broker emptied into one that stays, and stopped then.

    This lowers spec.replicas, no more: the operator drains, and stops what is empty.
    """
    api = place.api()
    broker = broker_of(api, name)
    has = int((broker.get("spec") or {}).get("replicas", 1))
    wanted = has - 1 if replicas is None else replicas
    if not 1 <= wanted < has:
        raise click.UsageError(
            f"the Broker {name} has {has}; between 1 and {has - 1} can stay"
            if has > 1
            else f"the Broker {name} has one broker, and no other that could take its messages"
        )
    version = broker["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": wanted}}
    api.merge(path_of(kinds.BROKER, api.namespace, name), body)
    click.echo(f"{name} goes from {has} to {wanted} brokers; those that leave are emptied first.")
    click.echo(f"next: kubectl vespiary -n {api.namespace} status {name}")


program.add_command(upgrade)


@program.command("support-bundle")
@click.argument("name", required=False)
@click.option(
    "--file",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The `.tar.gz` to make; in this folder, named after the time, unless it is given.",
)
@click.pass_obj
def support_bundle(place: Place, name: str | None, target: Path | None) -> None:
    """Write objects, Events, logs and metrics of a Broker, or of a namespace, to a .tar.gz.

    Without secrets: of Secrets only the names are asked for, and what looks like a password, a key
    or a token is replaced everywhere else. Look into it before you hand it on.
    """
    api = place.api()
    if name:
        broker_of(api, name)  # a wrong name is said before a file is made
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = target or Path(f"vespiary-{name or api.namespace}-{stamp}.tar.gz")
    try:
        refused = bundle.write(api, target, name or "")
    except FileExistsError as error:
        raise click.UsageError(f"{target} is there already; give another --file") from error
    click.echo(str(target))
    for sentence in refused:
        click.echo(f"not read: {sentence}", err=True)


def main() -> None:
    """Run the command."""
    program(prog_name="kubectl vespiary")
