"""`vespiary user`: who may log in.

Owns: the commands. They change the users file; a running broker notices by itself. Called by
`program`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.credentials import password_file_option, read_password
from vespiary_broker.cli.instance import config_option, data_option, load_instance
from vespiary_broker.cli.users_file import (
    add_user,
    read_users,
    remove_user,
    set_password,
    set_roles,
)

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
    return _places(config, data, file)[0]


def _places(config: Path | None, data: Path | None, file: Path | None) -> tuple[Path, Path | None]:
    """Return the users file, and the broker's mark that it has had one if that is known.

    Raises:
        CommandFailed: The folder of the file does not exist.
    """
    mark: Path | None = None
    if file is not None:
        path = file.absolute()
    else:
        instance = load_instance(config, data)
        path, mark = instance.users_file, instance.users_mark
    if not path.parent.is_dir():
        raise terminal.CommandFailed(
            f"there is no folder {path.parent}: name the broker's data folder with --data, or make "
            "one with `vespiary create`"
        )
    return path, mark


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
@_file_options
def add(
    name: str,
    roles: tuple[str, ...],
    password_file: Path | None,
    config: Path | None,
    data: Path | None,
    file: Path | None,
) -> None:
    """Add the user NAME. From the first user on, every client has to log in."""
    path, mark = _places(config, data, file)
    if name not in read_users(path):  # else there is nothing to ask a password for
        password = read_password(name, password_file, is_new=True)
    else:
        password = "-"  # noqa: S105  (refused before it is used)
    add_user(path, name, password, roles=roles, mark=mark)
    terminal.echo(f"added {name} to {path}")


@user.command("remove", short_help="Remove a user.")
@click.argument("name")
@_file_options
def remove(name: str, config: Path | None, data: Path | None, file: Path | None) -> None:
    """Remove the user NAME. Connections that are open stay."""
    path = _path(config, data, file)
    remove_user(path, name)
    terminal.echo(f"removed {name} from {path}")
    if not read_users(path):
        terminal.echo("no users are left: nobody can log in until you add one", err=True)


@user.command("password", short_help="Change a password.")
@click.argument("name")
@password_file_option
@_file_options
def password(
    name: str,
    password_file: Path | None,
    config: Path | None,
    data: Path | None,
    file: Path | None,
) -> None:
    """Change the password of the user NAME; its roles stay."""
    path = _path(config, data, file)
    set_password(path, name, read_password(name, password_file, is_new=True, what="new password"))
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
    path, mark = _places(config, data, file)
    users = sorted(read_users(path).values(), key=lambda user: user.name)
    if is_json:
        terminal.show_json([{"name": u.name, "roles": sorted(u.roles)} for u in users])
    elif users:
        terminal.show_table(
            ("user", "roles"), [(u.name, ", ".join(sorted(u.roles))) for u in users]
        )
    else:
        has_been = path.exists() or (mark is not None and mark.exists())
        meaning = "nobody can log in" if has_been else "clients of this machine need no login"
        terminal.echo(f"no users in {path}: {meaning}")
