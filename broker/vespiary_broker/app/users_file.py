"""The users file on disk: read at the start and again whenever it has changed.

Owns the path and what was read from it. Must never write it. Called by `broker`.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from vespiary_broker.engine.users import User, parse_users
from vespiary_broker.server.listener import is_loopback
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Configuration

log = logging.getLogger(__name__)


def is_anonymous_allowed(settings: Configuration) -> bool:
    """Return whether everybody may log in: it is so set, and every listener is on loopback."""
    hosts = [settings.admin.host, *(acceptor.host for acceptor in settings.acceptors)]
    return settings.security.allow_anonymous_on_loopback and all(map(is_loopback, hosts))


class UsersFile:
    """The users as the file says now.

    Attributes:
        digest: SHA-256 of the file that was taken, as hexadecimal digits; empty if there is none.
        refused: Why the file as it is now was not taken; empty if it was.
        on_changed: Called when other users were read.

    A file that turns bad while the broker runs changes nothing: the users read before stay, and the
    log says why.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.digest = ""
        self.refused = ""
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
            data = self._path.read_bytes()
            text = data.decode("utf-8")
        except FileNotFoundError:
            self._seen, self._users, self.digest, self.refused = None, {}, "", ""
            return self._users
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the users file cannot be read: {error}", path=str(self._path)
            ) from error
        self._users = parse_users(text, str(self._path))
        self._seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        self.digest, self.refused = hashlib.sha256(data).hexdigest(), ""
        if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("users file open to everybody path=%s cure='chmod 600'", self._path)
        return self._users

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
                if self._users != before:
                    self.on_changed()
            except ConfigError as error:
                self._seen = seen
                self.refused = str(error)
                log.error("users file not taken reason=%r", str(error))  # noqa: TRY400
        return self._users
