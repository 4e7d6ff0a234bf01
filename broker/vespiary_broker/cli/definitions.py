"""`vespiary crd`, `vespiary version` and `vespiary compatibility`: what this program is.

Owns: the commands. Called by `program`.
"""

from __future__ import annotations

import platform
from pathlib import Path

import click

from vespiary_broker.cli import terminal
from vespiary_broker.store.compatibility import own_compatibility
from vespiary_spec import compatibility as compatibilities
from vespiary_spec.version import VERSION


@click.command("crd", short_help="Print the CustomResourceDefinitions.")
def crd() -> None:
    """Print the CustomResourceDefinitions of this version, for `kubectl apply -f -`."""
    from vespiary_spec.gen.crds import definitions, to_yaml

    documents = [to_yaml(document).strip() for document in definitions().values()]
    terminal.echo("\n---\n".join(documents))


@click.command("version", short_help="Print the version.")
@click.option("--json", "is_json", is_flag=True, help="Print it as JSON, with what it runs on.")
def version(is_json: bool) -> None:
    """Print the version of Vespiary."""
    own = VERSION
    if is_json:
        terminal.show_json(
            {
                "version": own,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "kernel": platform.release(),
            }
        )
    else:
        terminal.echo(f"vespiary {own}")


@click.command("compatibility", short_help="Print which formats of files are read and written.")
@click.option(
    "--termination-message",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write the answer there as JSON, for the operator.",
)
@click.option("--json", "is_json", is_flag=True, help="Print it as JSON.")
def compatibility(termination_message: Path | None, is_json: bool) -> None:
    """Print which formats of files this version reads and writes.

    The operator asks the images themselves with this before it upgrades a Broker: the new version
    has to read what the old one wrote, and to go back the old one has to read what the new wrote.
    """
    own = own_compatibility()
    data = compatibilities.encode(own)
    if termination_message is not None:
        termination_message.write_bytes(data)
    if is_json:
        terminal.echo(data.decode())
        return
    terminal.echo(f"vespiary {own.version}, files are read by version {own.downgrade_to} and later")
    for item in own.formats:
        reads = ", ".join(map(str, item.reads))
        terminal.echo(f"{item.name}: writes format {item.writes}, reads {reads}")
