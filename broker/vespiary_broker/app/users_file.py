"""The users file on disk: read at the start and again whenever it has changed.

Owns the path and what was read from it. Must never write it. Called by `broker`.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from pathlib import Path

from vespiary_broker.engine.users import User, parse_users
from vespiary_spec.errors import ConfigError

log = logging.getLogger(__name__)


class UsersFile:
    """The users as the file says now.

    A file that turns bad while the broker runs changes nothing: the users read before stay, and the
    log says why.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
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
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            self._seen, self._users = None, {}
            return self._users
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the users file cannot be read: {error}", path=str(self._path)
            ) from error
        self._users = parse_users(text, str(self._path))
        self._seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("users file open to everybody path=%s cure='chmod 600'", self._path)
        return self._users

    def users(self) -> Mapping[str, User]:
        """Return the users by name; reads the file again if it has changed."""
        try:
            facts = self._path.stat()
            seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            try:
                self.read()
            except ConfigError as error:
                self._seen = seen
                log.error("users file not taken reason=%r", str(error))  # noqa: TRY400
        return self._users
