"""The users file on disk: read at the start and again whenever it has changed.

Owns the path, what was read from it, and the mark that a users file has existed: without it, a
file that is deleted or moved away would open the broker to everybody. Must never write the file:
`user_changes` does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from vespiary_broker.engine.users import User, parse_users
from vespiary_broker.server.web_pages import is_loopback
from vespiary_spec.errors import ConfigError
from vespiary_spec.regular_files import read_regular
from vespiary_spec.security import ANONYMOUS_ROLE
from vespiary_spec.settings import Configuration

log = logging.getLogger(__name__)

MARK_NAME: Final = "users-existed"
_MARK_TEXT: Final = """\
This broker has had a users file. While it has no users, nobody can log in.
To let clients of this machine in without a login again, stop the broker, delete the users file and
this file, and start the broker.
"""


def mark_users(mark: Path) -> None:
    """Note in a broker's data folder that it has had a users file.

    Args:
        mark: The file `users-existed` of the folder; the folder is made if it does not exist.

    Raises:
        OSError: It cannot be written.

    Durability: on return the mark survives a power loss.
    """
    if os.path.lexists(mark):
        return
    mark.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(mark, flags, 0o640), "w", encoding="utf-8") as file:
        file.write(_MARK_TEXT)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(mark.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def closed_reason(configuration: Configuration, *, have_existed: bool, has_rules: bool) -> str:
    """Return why nobody comes in without a login while there are no users, as a clause.

    Args:
        configuration: The broker's settings; `allow-anonymous` is for the caller.
        have_existed: Whether the broker has had a users file.
        has_rules: Whether it has `security-settings` now.

    Returns:
        Empty if every client of this machine comes in.
    """
    hosts = [configuration.admin.host, *(acceptor.host for acceptor in configuration.acceptors)]
    if have_existed:
        return "it has had a users file"
    if has_rules:
        return "it has security-settings"
    if not configuration.security.allow_anonymous_on_loopback:
        return "allow-anonymous-on-loopback is off"
    return "" if all(map(is_loopback, hosts)) else "it listens beyond loopback"


class UsersFile:
    """The users as the file says now.

    Attributes:
        digest: SHA-256 of the file that was taken, as hexadecimal digits; empty if there is none.
        refused: Why the file as it is now was not taken; empty if it was.
        have_existed: Whether the broker has ever had a users file, with or without users in it.
        on_changed: Called when other users were read, or other roles of them; a new password is for
            the next login alone.

    A file that turns bad while the broker runs changes nothing: the users read before stay, and the
    log says why.

    Args:
        path: The file; it need not exist.
        mark: File that tells later starts that there was a users file; None: none is written.
    """

    def __init__(self, path: Path, mark: Path | None = None) -> None:
        self.digest = ""
        self.refused = ""
        self.have_existed = False
        self._mark = mark
        self.on_changed: Callable[[], None] = lambda: None
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._users: Mapping[str, User] = {}

    def read(self) -> Mapping[str, User]:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, or a line of it is not a user.
        """
        try:
            facts = self._path.stat()
            data = read_regular(self._path)
            text = data.decode("utf-8")
        except FileNotFoundError:
            self._seen, self._users, self.digest, self.refused = None, {}, "", ""
            self.have_existed |= self._mark is not None and os.path.lexists(self._mark)
            return self._users
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the users file cannot be read: {error}", path=str(self._path)
            ) from error
        self._users = parse_users(text, str(self._path))
        self._seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        self.digest, self.refused = hashlib.sha256(data).hexdigest(), ""
        self._note_existence()
        if ANONYMOUS_ROLE in self._users:
            log.warning(
                "a user has the name of clients without a login, and only their role user=%s "
                "path=%s cure='add it under another name, and remove it'",
                ANONYMOUS_ROLE,
                self._path,
            )
        if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("users file open to everybody path=%s cure='chmod 600'", self._path)
        return self._users

    def _note_existence(self) -> None:
        if self.have_existed:
            return
        self.have_existed = True
        try:
            if self._mark is not None:
                mark_users(self._mark)
        except OSError as error:
            log.warning(
                "cannot note that there is a users file: without it, the next start lets clients "
                "of this machine in without a login path=%s reason=%r",
                self._mark,
                str(error),
            )

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def users(self) -> Mapping[str, User]:
        """Return the users by name; reads the file again if it has changed."""
        try:
            facts = self._path.stat()
            seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            before = self._users
            try:
                self.read()
                if _roles(self._users) != _roles(before):
                    self.on_changed()
            except ConfigError as error:
                self._seen = seen
                self.refused = str(error)
                log.error("users file not taken reason=%r", str(error))  # noqa: TRY400
        return self._users


def _roles(users: Mapping[str, User]) -> dict[str, frozenset[str]]:
    return {user.name: user.roles for user in users.values()}
