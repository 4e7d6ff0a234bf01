"""`vespiary crd` and `vespiary version`: what this program is.

Owns: the commands. Called by `program`.
"""

from __future__ import annotations

import platform

import click

from vespiary_broker.cli import terminal
from vespiary_spec.version import VERSION


@click.command("crd", short_help="Print the CustomResourceDefinitions.")
def crd() -> None:
    """Print the CustomResourceDefinitions of this version, for `kubectl apply -f -`."""
    from vespiary_spec.gen.crds import definitions, to_yaml

    documents = [to_yaml(document).strip() for document in definitions().values()]
    click.echo("\n---\n".join(documents))


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
        click.echo(f"vespiary {own}")
