"""`vespiary drain`: move everything of a running broker to another one, and let nobody in.

Owns: the command, and how progress is shown. Called by `program`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_one, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options
from vespiary_broker.cli.credentials import read_password, refuse_password_in_url

_LOOK_S: Final = 0.2


@click.command("drain", short_help="Move all messages of a broker to another one.")
@click.option("--to", "target", metavar="URL", help="HTTP listener of the other broker.")
@click.option(
    "--to-password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="First line is the password of the user in `--to`; else as for `--password-file`.",
)
@click.option("--no-wait", is_flag=True, help="Begin, and do not wait for the end.")
@yes_option
@click.option("--cancel", is_flag=True, help="End a drain and let clients in again.")
@api_options
def drain(
    target: str | None,
    to_password_file: Path | None,
    no_wait: bool,
    yes: bool,
    cancel: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> int:
    """Move all messages to the broker at `--to`, as http://user@host:port, and wait for it.

    From its beginning on no client is let in, also not after a restart, until `--cancel`. Each
    message is flushed there before it is ended here. Without an option: where a drain stands.

    Exit codes: 0 drained, 1 something is left.
    """
    client = ApiClient(api_url, password_file)
    if cancel and target:
        raise click.UsageError("--cancel and --to exclude one another")
    if cancel:
        client.call("DELETE", "/drain")
        terminal.echo("clients are let in again; what has moved stays where it is")
        return 0
    if target is None:
        show_one(client.call("GET", "/drain"), is_json)
        return 0
    wanted = _wanted(target, to_password_file or password_file)
    confirm(f"Close all connections and move all messages to {target}?", yes)
    state = client.call("POST", "/drain", wanted)
    while state["phase"] == "draining" and not no_wait:
        _show_progress(state)
        time.sleep(_LOOK_S)
        state = client.call("GET", "/drain")
    if is_json:
        terminal.show_json(state)
    elif state["phase"] == "draining":
        terminal.echo(f"draining into {target}; `vespiary drain` says how far it is")
    else:
        _show_end(state, target)
    return 0 if state["phase"] in ("drained", "draining") else 1


def _wanted(target: str, password_file: Path | None) -> dict[str, str]:
    """Return the body of the request.

    Raises:
        CommandFailed: The URL is none or holds a password, or there is no password for its user.
    """
    try:
        parts = urlsplit(target)
        port = parts.port
    except ValueError as error:
        raise terminal.CommandFailed(f"{target!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise terminal.CommandFailed(f"{target!r} is no URL of a broker: http://user@host:port")
    refuse_password_in_url(parts.password, parts.hostname)
    wanted = {"target": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"}
    if parts.username:
        wanted["user"] = parts.username
        wanted["password"] = read_password(parts.username, password_file)
    return wanted


def _show_progress(state: dict[str, Any]) -> None:
    if sys.stderr.isatty():
        said = f"  {state['reason']}" if state["reason"] else ""
        terminal.rewrite_line(f"{state['moved']} moved, {state['messagesLeft']} left{said}")


def _show_end(state: dict[str, Any], target: str) -> None:
    if sys.stderr.isatty():
        terminal.echo(err=True)
    seconds = (state["endedMs"] - state["startedMs"]) / 1000
    size = terminal.counted(state["movedBytes"], "byte")
    terminal.echo(
        f"{terminal.counted(state['moved'], 'message')} ({size}) moved to {target} in "
        f"{seconds:.1f} s; {state['messagesLeft']} left"
    )
    if state["phase"] != "drained":
        terminal.show_sentence(state["reason"] or f"the drain is {state['phase']}")
