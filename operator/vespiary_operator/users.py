"""Users of a broker: the generated password, and the users file that the pods read.

The file holds salted hashes alone, in the form that docs/howto/stomp.md shows, so a broker's pod
never has a password. A line stays as it is while it fits its password, so nothing changes
between two looks.

Never: logs or stores a password. Called by: `observer`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from scramp import ScramException, ScramMechanism

from vespiary_operator import names
from vespiary_spec.errors import ConfigError
from vespiary_spec.security import Auth

_MECHANISM = "SCRAM-SHA-256"
_ITERATIONS = 600_000
_PASSWORD_CHARACTERS_MIN: Final = 8
_SALT_BYTES_MIN: Final = 12
_ADMIN_ROLE: Final = "admin"
_ADMIN_ALONE: Final = MappingProxyType({names.ADMIN_USER: (_ADMIN_ROLE,)})
_NAME = re.compile(r"[^\x00-\x20\x7f#:]{1,200}")
_LINE = re.compile(
    r"(?P<name>\S+) SCRAM-SHA-256\$(?P<count>[0-9]{1,8}):(?P<salt>[^$:\s]+)"
    r"\$(?P<stored>[^$:\s]+):(?P<server>[^$:\s]+)(?: (?P<roles>\S+))?",
    re.ASCII,
)


def new_password() -> str:
    """Return a password of 192 random bits."""
    return secrets.token_urlsafe(24)


def decoded(data: Mapping[str, str], secret: str) -> dict[str, str]:
    """Return names and passwords of a Secret.

    Args:
        data: `data` of the Secret.
        secret: Its name, for messages.

    Raises:
        ConfigError: A value is no text or empty, or a key cannot be a user's name.
    """
    found = {}
    for name, value in sorted(data.items()):
        if not _NAME.fullmatch(name):
            raise ConfigError("this is no user name", path=f"Secret {secret}", value=name)
        try:
            password = base64.b64decode(value, validate=True).decode("utf-8").strip("\n")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the password of `{name}` is no text", path=f"Secret {secret}"
            ) from error
        if not password:
            raise ConfigError(f"the password of `{name}` is empty", path=f"Secret {secret}")
        found[name] = password
    if not found:
        raise ConfigError(
            "the Secret names no user",
            path=f"Secret {secret}",
            cure="give it a key for each user, with the password as its value",
        )
    return found


def _keys(password: str, count: int, salt: bytes | None) -> tuple[bytes, bytes, bytes]:
    """Return salt, stored key and server key."""
    try:
        salt, stored, server, _ = ScramMechanism(_MECHANISM).make_auth_info(
            password, iteration_count=count, salt=salt
        )
    except ScramException as error:
        raise ConfigError(f"the password may not be one ({error})", path="Secret") from error
    return salt, stored, server


def _fitting_verifier(line: str, name: str, password: str) -> str:
    """Return the verifier of a user's line, if it fits its password; empty if not."""
    match = _LINE.fullmatch(line)
    if match is None or match["name"] != name:
        return ""
    if not 4096 <= int(match["count"]) <= 1_000_000:
        return ""
    try:
        salt, stored = (base64.b64decode(match[part], validate=True) for part in ("salt", "stored"))
    except binascii.Error:
        return ""
    if len(salt) < _SALT_BYTES_MIN:
        return ""
    is_fitting = hmac.compare_digest(_keys(password, int(match["count"]), salt)[1], stored)
    return line.split(" ")[1] if is_fitting else ""


def _verifier(line: str, name: str, password: str, *, is_short_allowed: bool) -> str:
    """Return the verifier of a user: the one of its line, unless it is wrong or weak.

    Raises:
        ConfigError: The password is new, and too short.
    """
    found = _fitting_verifier(line, name, password)
    if not found and len(password) < _PASSWORD_CHARACTERS_MIN and not is_short_allowed:
        raise ConfigError(
            f"the password of `{name}` is too short",
            path="Secret",
            value=f"{len(password)} characters",
            allowed=f"{_PASSWORD_CHARACTERS_MIN} or more",
            cure="choose a longer one, or set spec.auth.allowShortPasswords",
        )
    count = found.removeprefix(f"{_MECHANISM}$").partition(":")[0]
    return found if found and int(count) >= _ITERATIONS else _new_verifier(password)


def _new_verifier(password: str) -> str:
    salt, stored, server = (
        base64.b64encode(part).decode() for part in _keys(password, _ITERATIONS, None)
    )
    return f"{_MECHANISM}${_ITERATIONS}:{salt}${stored}:{server}"


def roles_of(auth: Auth) -> dict[str, tuple[str, ...]]:
    """Return the roles of the users that a Broker names; `admin` has its own in any case."""
    found = {user.name: set(user.roles) for user in auth.users}
    found.setdefault(names.ADMIN_USER, set()).add(_ADMIN_ROLE)
    return {name: tuple(sorted(roles)) for name, roles in sorted(found.items())}


def users_file(
    passwords: Mapping[str, str],
    existing: str = "",
    roles: Mapping[str, Sequence[str]] = _ADMIN_ALONE,
    *,
    is_short_allowed: bool = False,
) -> str:
    """Return the users file of these passwords.

    Args:
        passwords: Passwords by user name.
        existing: The file as it is now; verifiers that fit are kept, unless a hash takes fewer
            rounds than those that are made now.
        roles: Roles by user name.
        is_short_allowed: Take new passwords of fewer than 8 characters.

    Raises:
        ConfigError: A password has characters that none may have (RFC 4013), a new one is too
            short, or roles are given to a user without a password.
    """
    strangers = sorted(set(roles) - set(passwords) - {names.ADMIN_USER})
    if strangers:
        raise ConfigError(
            "the Secret has no password of this user",
            path="spec.auth.users",
            value=strangers[0],
            allowed=", ".join(sorted(passwords)),
        )
    by_name = {line.partition(" ")[0]: line for line in existing.splitlines()}
    lines = []
    for name, password in sorted(passwords.items()):
        line = by_name.get(name, "")
        verifier = _verifier(line, name, password, is_short_allowed=is_short_allowed)
        lines.append(f"{name} {verifier} {','.join(roles.get(name, ()))}".rstrip())
    return "\n".join([*lines, ""])
