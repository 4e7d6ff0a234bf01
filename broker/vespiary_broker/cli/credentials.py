"""Passwords for commands: from the environment, a file or a prompt, never from an argument.

Owns the three sources and their order. An argument would stand in the shell's history and in the
list of processes. Must never print or keep a password. Called by the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vespiary_broker.cli.terminal import CommandFailed

PASSWORD_VARIABLE: Final = "VESPIARY_PASSWORD"  # noqa: S105  (the variable's name)

F = TypeVar("F", bound=Callable[..., Any])


def password_file_option(function: F) -> F:
    """Add `--password-file`."""
    return click.option(
        "--password-file",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help=f"First line of this file is the password; without it {PASSWORD_VARIABLE}, "
        "else a prompt.",
    )(function)


def short_password_option(function: F) -> F:
    """Add `--allow-short-password`."""
    return click.option(
        "--allow-short-password",
        "is_short_allowed",
        is_flag=True,
        help="Take a password of fewer than 8 characters.",
    )(function)


def read_password(
    user: str, password_file: Path | None, *, is_new: bool = False, what: str = "password"
) -> str:
    """Return a password: of the file, else of the environment, else typed.

    Args:
        user: Whose, for the prompt.
        password_file: A file; `-` is standard input. None for the other sources.
        is_new: Ask twice at the prompt.
        what: What is asked for, for the prompt.

    Raises:
        CommandFailed: There is none to be had.
    """
    if password_file is not None:
        return _from_file(password_file)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password:
        return password
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"no password for {user}: set {PASSWORD_VARIABLE}, or name a file with --password-file"
        )
    typed: str = click.prompt(
        f"{what} of {user}", hide_input=True, confirmation_prompt=is_new, err=True
    )
    return typed


def _from_file(path: Path) -> str:
    try:
        text = sys.stdin.readline() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"the password file {path} cannot be read: {error}") from error
    password = text.partition("\n")[0].removesuffix("\r")
    if not password:
        raise CommandFailed(f"the first line of the password file {path} is empty")
    return password


def refuse_password_in_url(password: str | None, url: str) -> None:
    """Refuse a URL that holds a password.

    Raises:
        CommandFailed: It does.
    """
    if password is not None:
        raise CommandFailed(
            f"the URL of {url} holds a password, which ends up in the shell's history: leave it "
            f"out and set {PASSWORD_VARIABLE}, or name a file with --password-file"
        )
