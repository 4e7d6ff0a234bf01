"""`vespiary user`: who may log in.

Owns: the commands. They change the users file; a running broker notices by itself. Called by
`program`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vespiary_broker.app.user_changes import (
    add_user,
    read_users,
    remove_user,
    set_password,
    set_roles,
)
from vespiary_broker.app.users_file import closed_reason
from vespiary_broker.cli import terminal
from vespiary_broker.cli.credentials import (
    password_file_option,
    read_password,
    short_password_option,
)
from vespiary_broker.cli.instance import config_option, data_option, load_instance

F = TypeVar("F", bound=Callable[..., Any])


def _file_options(function: F) -> F:
    for option in (
        click.option(
            "--file",
            "file",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The users file itself; wins over --config and --data.",
        ),
        data_option,
        config_option,
    ):
        function = option(function)
    return function


def _path(config: Path | None, data: Path | None, file: Path | None) -> Path:
    """Return the users file.

    Raises:
        CommandFailed: The folder of the file does not exist.
    """
    path = load_instance(config, data).users_file if file is None else file.absolute()
    if not path.parent.is_dir():
        raise terminal.CommandFailed(
            f"there is no folder {path.parent}: name the broker's data folder with --data, or make "
            "one with `vespiary create`"
        )
    return path


def _meaning(config: Path | None, data: Path | None, file: Path | None) -> str:
    """Return what it means for clients that a broker has no users; empty: it is not known here."""
    if file is not None:
        return ""
    instance = load_instance(config, data)
    configuration = instance.configuration
    reason = closed_reason(
        configuration,
        have_existed=instance.users_file.exists() or os.path.lexists(instance.users_mark),
        has_rules=bool(configuration.security_settings),
    )
    if configuration.security.allow_anonymous:
        return "clients need no login, and have the role anonymous"
    if reason:
        return f"nobody can log in until you add one ({reason})"
    return "clients of this machine need no login"


@click.group("user", short_help="Add, remove and list users.")
def user() -> None:
    """Users of a broker on this machine: the users file in its data folder.

    A running broker takes changes over at once. Passwords are never arguments: they come from
    --password-file, VESPIARY_PASSWORD, or a prompt, and only a salted hash is kept.
    """


@user.command("add", short_help="Add a user.")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="A role: `admin` may change everything by the HTTP API; what others may, "
    "`security-settings` say. May be repeated.",
)
@password_file_option
@short_password_option
@_file_options
def add(
    name: str,
    roles: tuple[str, ...],
    password_file: Path | None,
    is_short_allowed: bool,
    config: Path | None,
    data: Path | None,
    file: Path | None,
) -> None:
    """Add the user NAME. From the first user on, every client has to log in."""
    path = _path(config, data, file)
    if name not in read_users(path):  # else there is nothing to ask a password for
        password = read_password(name, password_file, is_new=True)
    else:
        password = "-"  # noqa: S105  (refused before it is used)
    add_user(path, name, password, roles=roles, is_short_allowed=is_short_allowed)
    terminal.echo(f"added {name} to {path}")


@user.command("remove", short_help="Remove a user.")
@click.argument("name")
@_file_options
def remove(name: str, config: Path | None, data: Path | None, file: Path | None) -> None:
    """Remove the user NAME. A running broker closes the user's connections within a second."""
    path = _path(config, data, file)
    remove_user(path, name)
    terminal.echo(f"removed {name} from {path}")
    if not read_users(path):
        terminal.echo(_joined("no users are left", _meaning(config, data, file)), err=True)


@user.command("password", short_help="Change a password.")
@click.argument("name")
@password_file_option
@short_password_option
@_file_options
def password(
    name: str,
    password_file: Path | None,
    is_short_allowed: bool,
    config: Path | None,
    data: Path | None,
    file: Path | None,
) -> None:
    """Change the password of the user NAME; its roles stay."""
    path = _path(config, data, file)
    new = read_password(name, password_file, is_new=True, what="new password")
    set_password(path, name, new, is_short_allowed=is_short_allowed)
    terminal.echo(f"changed the password of {name} in {path}")


@user.command("roles", short_help="Change a user's roles.")
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="A role that the user has. May be repeated.")
@_file_options
def roles(
    name: str,
    roles: tuple[str, ...],
    config: Path | None,
    data: Path | None,
    file: Path | None,
) -> None:
    """Give the user NAME these roles and no others; without --role, none.

    A running broker takes them within a second, also for connections that are open.
    """
    path = _path(config, data, file)
    set_roles(path, name, roles)
    terminal.echo(f"{name} in {path}: {', '.join(sorted(set(roles))) or 'no roles'}")


@user.command("list", short_help="List users.")
@_file_options
@click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")
def list_users(config: Path | None, data: Path | None, file: Path | None, is_json: bool) -> None:
    """List the users and their roles."""
    path = _path(config, data, file)
    users = sorted(read_users(path).values(), key=lambda user: user.name)
    if is_json:
        terminal.show_json([{"name": u.name, "roles": sorted(u.roles)} for u in users])
    elif users:
        terminal.show_table(
            ("user", "roles"), [(u.name, ", ".join(sorted(u.roles))) for u in users]
        )
    else:
        terminal.echo(_joined(f"no users in {path}", _meaning(config, data, file)))


def _joined(what: str, meaning: str) -> str:
    return f"{what}: {meaning}" if meaning else what
