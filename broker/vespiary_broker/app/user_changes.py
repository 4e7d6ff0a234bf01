"""Changing a users file: one change at a time, whole or not at all.

Owns the writing of users files; what stands in them is `engine.users`. A change is written to a
temporary name and renamed, under a lock, so that neither a crash nor a second command spoils the
file. Editors and deployment tools take no lock: a change begins again if the file became another
one meanwhile, so that a user whom they remove stays removed. A running broker changes only the hash
of a password that it has just found to be right, and leaves the rest of the file as it is.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vespiary_broker.engine.users import (
    User,
    check_password_length,
    checked_roles,
    format_users,
    make_user,
    parse_users,
)
from vespiary_spec.errors import ConfigError, NativeError
from vespiary_spec.regular_files import read_regular

Users = dict[str, User]
_MODE = 0o600


def read_users(path: Path) -> Users:
    """Return the users of a file; none if it does not exist.

    Raises:
        ConfigError: It cannot be read, or a line is not a user.
    """
    return parse_users(_read(path), str(path))


def _read(path: Path) -> str:
    """Return a file's text; empty if it does not exist."""
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the users file cannot be read: {error}", path=str(path)) from error


def add_user(
    path: Path,
    name: str,
    password: str,
    *,
    roles: Iterable[str] = (),
    is_short_allowed: bool = False,
) -> None:
    """Add a user.

    Args:
        path: The users file; it need not exist.
        name: Name of the user.
        password: Its password.
        roles: Its roles.
        is_short_allowed: Take a password of fewer than 8 characters.

    Raises:
        ConfigError: There is one of that name, or name, role or password may not be one.
        NativeError: The file cannot be written; it is as it was.

    Durability: on return the user survives a power loss.
    """
    if name not in read_users(path):  # else that is what there is to say
        check_password_length(name, password, is_short_allowed=is_short_allowed)
    user = make_user(name, password, roles=roles)

    def change(users: Users) -> None:
        if name in users:
            raise ConfigError(
                "there is a user of this name already",
                path=str(path),
                value=name,
                cure=f"change the password with `vespiary user password {name}`",
            )
        users[name] = user

    _change(path, change)


def remove_user(path: Path, name: str) -> None:
    """Remove a user.

    Raises:
        ConfigError: There is none of that name.
        NativeError: The file cannot be written; it is as it was.

    Durability: on return the user stays away after a power loss.
    """

    def change(users: Users) -> None:
        _existing(users, name, path)
        del users[name]

    _change(path, change)


def set_password(path: Path, name: str, password: str, *, is_short_allowed: bool = False) -> None:
    """Change a user's password; the roles stay.

    Args:
        path: The users file.
        name: Name of the user.
        password: Its new password.
        is_short_allowed: Take a password of fewer than 8 characters.

    Raises:
        ConfigError: There is none of that name, or the password may not be one.
        NativeError: The file cannot be written; it is as it was.

    Durability: on return the new password survives a power loss.
    """
    check_password_length(name, password, is_short_allowed=is_short_allowed)

    def change(users: Users) -> None:
        roles = _existing(users, name, path).roles
        users[name] = make_user(name, password, roles=roles)

    _change(path, change)


def replace_hash(path: Path, old: User, new: User) -> bool:
    """Replace the hash of a user's password by another one of the same password.

    Args:
        path: The users file.
        old: The user as it was read.
        new: The user with another hash.

    Returns:
        Whether the file was changed: False if somebody has changed or removed the user meanwhile.

    Raises:
        ConfigError: The file cannot be read, or is a link, as in a Kubernetes Secret.
        NativeError: The file cannot be written; it is as it was.

    Durability: on return the new hash survives a power loss; before, the old one does.
    """
    if path.is_symlink():
        raise ConfigError("the users file is a link", path=str(path))

    def edit(text: str) -> str:
        found = parse_users(text, str(path)).get(old.name)
        if found is None or found.stored_key != old.stored_key:
            return text
        # The salt makes it one of a kind. Comments, roles and the order of users stay.
        return text.replace(old.verifier, new.verifier)

    return _edit(path, edit)


def set_roles(path: Path, name: str, roles: Iterable[str]) -> None:
    """Give a user these roles and no others; the password stays.

    Raises:
        ConfigError: There is none of that name, or a role may not be one.
        NativeError: The file cannot be written; it is as it was.

    Durability: on return the roles survive a power loss.
    """
    wanted = checked_roles(roles)

    def change(users: Users) -> None:
        users[name] = replace(_existing(users, name, path), roles=wanted)

    _change(path, change)


def _existing(users: Users, name: str, path: Path) -> User:
    if name not in users:
        raise ConfigError(
            "there is no user of this name",
            path=str(path),
            value=name,
            allowed=", ".join(sorted(users)[:20]) or "nobody: the file has no users",
        )
    return users[name]


def _change(path: Path, change: Callable[[Users], None]) -> None:
    def edit(text: str) -> str:
        users = parse_users(text, str(path))
        change(users)
        return format_users(users.values())

    _edit(path, edit)


def _edit(path: Path, edit: Callable[[str], str]) -> bool:
    """Replace the text of a file; return whether it is another one now.

    Args:
        path: The file; it need not exist.
        edit: Returns the new text; called again if the file was changed meanwhile.
    """
    try:
        with _locked(path.parent):
            while True:
                before = _state(path)
                text = _read(path)
                wanted = edit(text)
                if wanted == text:
                    return False
                if _write(path, wanted, before):
                    return True
    except OSError as error:
        if isinstance(error, NativeError):
            raise
        raise NativeError(
            "the users file cannot be written", error.errno or 0, where=str(path)
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder: the file itself is replaced by every change."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _state(path: Path) -> tuple[int, ...]:
    """Return what differs after somebody has changed a file; empty if it does not exist."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _write(path: Path, text: str, before: tuple[int, ...]) -> bool:
    """Replace a file; return False, and change nothing, if it is not as it was before."""
    mode = path.stat().st_mode & 0o777 if path.exists() else _MODE
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if _state(path) != before:
            made.unlink()
            return False
        made.rename(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise
    return True
