"""Users and their salted password hashes, as the users file holds them.

Owns the format of the file (docs/howto/stomp.md shows it to users) and the arithmetic of a check.
Must never keep a password, nor read or write the file: `app` reads it, `vespiary user` writes it.

One user a line, `#` begins a comment, columns are separated by blanks:

    alice SCRAM-SHA-256$4096:SALT$STOREDKEY:SERVERKEY admin

name, verifier, and roles separated by commas (may be missing). Salt and keys are base64. The
verifier is the form that PostgreSQL stores (RFC 5802 names its parts), so it also serves SASL
SCRAM.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vespiary_spec.errors import ConfigError
from vespiary_spec.security import ANONYMOUS_ROLE

MECHANISM: Final = "SCRAM-SHA-256"
DEFAULT_ITERATIONS: Final = 600_000
"""Rounds of new hashes, as OWASP's Password Storage Cheat Sheet asks for PBKDF2 with SHA-256."""
PASSWORD_CHARACTERS_MIN: Final = 8
_ITERATIONS_MIN: Final = 4096
_ITERATIONS_MAX: Final = 10_000_000
_NAME: Final = re.compile(r"[^\x00-\x20\x7f#:]{1,200}")
_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$(\d{1,8}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        name: Its name.
        salt: Salt of the hash.
        iterations: Rounds of the hash.
        stored_key: What a password is checked against.
        server_key: What SCRAM proves the server by.
        roles: What it may do beyond sending and consuming.
    """

    name: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    roles: frozenset[str] = frozenset()

    def to_line(self) -> str:
        """Return its line of the users file, without a line feed."""
        return f"{self.name} {self.verifier} {','.join(sorted(self.roles))}".rstrip()

    @property
    def verifier(self) -> str:
        """Its hash, as the users file has it."""
        salt, stored, server = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    @property
    def is_outdated(self) -> bool:
        """Whether its hash takes fewer rounds than those that are made now."""
        return self.iterations < DEFAULT_ITERATIONS

    def is_password(self, password: str) -> bool:
        """Return whether this is the user's password; takes tenths of a second on purpose.

        Args:
            password: What the client sent.
        """
        # Not at the top, as in `make_user`: a broker without users starts 16 ms earlier.
        from scramp import ScramException, ScramMechanism

        try:
            _, stored_key, _, _ = ScramMechanism(MECHANISM).make_auth_info(
                password, iteration_count=self.iterations, salt=self.salt
            )
        except ScramException:  # characters that no password may have (RFC 4013)
            return False
        return hmac.compare_digest(stored_key, self.stored_key)


def make_user(
    name: str,
    password: str,
    *,
    roles: Iterable[str] = (),
    iterations: int = DEFAULT_ITERATIONS,
) -> User:
    """Return a user with a fresh salt.

    Args:
        name: Printable, without blanks, colon and `#`, at most 200 characters.
        password: Not empty.
        roles: Roles; same characters as names, without commas.
        iterations: Rounds of the hash, 4096 to 10 million.

    Raises:
        ConfigError: A name, a role or the password may not be one.
    """
    _check_name(name, "user name")
    if name == ANONYMOUS_ROLE:
        raise ConfigError(
            "the user name may not be one: clients without a login have it", path=name
        )
    wanted = checked_roles(roles)
    if not password:
        raise ConfigError("the password is empty", path=name)
    from scramp import ScramException, ScramMechanism

    try:
        salt, stored_key, server_key, count = ScramMechanism(MECHANISM).make_auth_info(
            password, iteration_count=iterations
        )
    except ScramException as error:
        raise ConfigError(f"the password may not be one ({error})", path=name) from error
    return User(name, salt, count, stored_key, server_key, wanted)


def check_password_length(name: str, password: str, *, is_short_allowed: bool = False) -> None:
    """Reject a new password that is short enough to be guessed.

    Args:
        name: Whose it is.
        password: The password.
        is_short_allowed: Take it nevertheless.

    Raises:
        ConfigError: It has fewer than 8 characters.
    """
    if len(password) < PASSWORD_CHARACTERS_MIN and not is_short_allowed:
        raise ConfigError(
            "the password is too short",
            path=name,
            value=f"{len(password)} character{'' if len(password) == 1 else 's'}",
            allowed=f"{PASSWORD_CHARACTERS_MIN} or more",
            cure="choose a longer one, or pass --allow-short-password",
        )


def checked_roles(roles: Iterable[str]) -> frozenset[str]:
    """Return roles that a user may have.

    Raises:
        ConfigError: One may not be a role.
    """
    return frozenset(_check_name(role, "role") for role in roles)


def parse_users(text: str, where: str) -> dict[str, User]:
    """Return the users of a users file by name.

    Args:
        text: Its content.
        where: Its path, for messages.

    Raises:
        ConfigError: A line is not a user; names its number, never its content.
    """
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        columns = line.partition("#")[0].split()
        if not columns:
            continue
        user = _parse_line(columns, f"{where}:{number}")
        if user.name in users:
            raise ConfigError("the user stands there twice", path=f"{where}:{number}")
        users[user.name] = user
    return users


def format_users(users: Iterable[User]) -> str:
    """Return the content of a users file."""
    head = "# Users of this broker; `vespiary user` keeps it. name, verifier, roles\n"
    return head + "".join(f"{user.to_line()}\n" for user in users)


def _parse_line(columns: list[str], place: str) -> User:
    if not 2 <= len(columns) <= 3:
        raise ConfigError(
            "the line has a wrong number of columns",
            path=place,
            value=len(columns),
            allowed="name, verifier, and roles if any",
        )
    name = _check_name(columns[0], "user name", place)
    match = _VERIFIER.fullmatch(columns[1])
    if match is None:
        raise ConfigError(
            "the verifier cannot be understood",
            path=place,
            allowed=f"{MECHANISM}$iterations:salt$StoredKey:ServerKey",
            cure="write the line with `vespiary user`",
        )
    iterations = int(match[1])
    if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
        raise ConfigError(
            "the number of iterations is out of range",
            path=place,
            value=iterations,
            allowed=f"{_ITERATIONS_MIN} to {_ITERATIONS_MAX}",
        )
    try:
        salt, stored, server = (
            base64.b64decode(part, validate=True) for part in match.groups()[1:]
        )
    except ValueError as error:
        raise ConfigError("salt or keys are not base64", path=place) from error
    if len(stored) != 32 or len(server) != 32:
        raise ConfigError("the keys are not 32 bytes long", path=place)
    roles = frozenset(columns[2].split(",")) if len(columns) == 3 else frozenset()
    return User(name, salt, iterations, stored, server, roles)


def _check_name(name: str, kind: str, place: str = "") -> str:
    if _NAME.fullmatch(name) is None or "," in name:
        raise ConfigError(
            f"the {kind} may not be one",
            path=place,
            value=name,
            allowed="1 to 200 printable characters without blanks, commas, colons and #",
        )
    return name
