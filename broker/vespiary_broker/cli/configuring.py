"""`vespiary configuration`: what a running broker has taken, and what a change would need.

Owns: the commands and their tables. Called by `program`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import show_all
from vespiary_broker.cli.api_client import ApiClient, api_options
from vespiary_spec.changes import class_of
from vespiary_spec.model import Spelling, fields_of
from vespiary_spec.settings import Configuration

_CERTIFICATES: Final = (
    ("acceptor", "acceptor"),
    ("subject", "subject"),
    ("days left#", "days"),
    ("refused", "refused"),
)
_CLASSES: Final = (("setting", "name"), ("a change needs", "change"))
_DAY_S: Final = 86_400


@click.group("configuration", short_help="Show and reload the configuration of a broker.")
def configuration() -> None:
    """The configuration of a running broker, by its HTTP API."""


@configuration.command("show", short_help="Show what is in effect.")
@api_options
def show(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Show the configuration files, users and certificates in effect, and what waits."""
    _show(ApiClient(api_url, password_file).call("GET", "/configuration"), is_json=is_json)


@configuration.command("reload", short_help="Read the files again.")
@api_options
def reload(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Have configuration, users and certificates read again, as SIGHUP does.

    A file with anything wrong in it changes nothing, and what is wrong is said.
    """
    answer = ApiClient(api_url, password_file).call("POST", "/configuration/reload")
    _show(answer, is_json=is_json)


@configuration.command("changes", short_help="List what a change of each setting needs.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def changes(is_json: bool) -> None:
    """List the top-level settings, and whether a change of them needs a restart.

    What stands below a setting, as in `address-settings`, needs what the setting needs.
    """
    items = [
        {"name": field.spelled(Spelling.KEBAB), "change": class_of(field).value}
        for field in fields_of(Configuration)
    ]
    show_all(items, _CLASSES, is_json)


def _show(found: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        terminal.show_json(found)
        return
    for line in _lines(found):
        terminal.echo(line)
    if found["certificates"]:
        items = [
            {**each, "days": int(each["expiresInS"] // _DAY_S)} for each in found["certificates"]
        ]
        show_all(items, _CERTIFICATES, False)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for each in found["files"]:
        yield f"file               {each['path']} ({each['digest'][:12] or 'missing'})"
    users = found["users"]
    yield f"users              {users['path']} ({users['digest'][:12] or 'none'})"
    yield f"reloads            {found['taken']} taken, {found['failed']} refused"
    for what, sentence in (("", found["refused"]), ("users: ", users["refused"])):
        if sentence:
            yield f"refused            {what}{sentence}"
    for name in found["waitsForRestart"]:
        yield f"waits for restart  {name}"
    for name in found["kept"]:
        yield f"kept               {name}"
