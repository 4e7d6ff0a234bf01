"""What the salts of unknown users follow from: random bytes in the data folder.

SCRAM tells a client the salt of the user that it names. For a name that does not exist the broker
makes one up, which has to stay the same, as that of a user does, while users come, go and change
their passwords. Owns the file `login-secret`.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from vespiary_spec.regular_files import read_regular

SECRET_NAME: Final = "login-secret"  # noqa: S105 (a file's name)
_BYTES: Final = 32

log = logging.getLogger(__name__)


class LoginSecret:
    """The secret of one broker.

    Args:
        path: Its file; made at the first call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._secret: bytes | None = None

    def __call__(self) -> bytes:
        """Return the secret; empty, which is logged once, if it can be neither read nor written."""
        if self._secret is None:
            try:
                self._secret = self._read() or self._write()
            except OSError as error:
                self._secret = b""
                # Pods have no folder to write to but their volumes, and need to agree: that is so.
                log.log(
                    logging.INFO if error.errno == errno.EROFS else logging.WARNING,
                    "whether a user exists can be found out by SCRAM after users have changed, "
                    "since there is no login secret path=%s reason=%r",
                    self._path,
                    str(error),
                )
        return self._secret

    def _read(self) -> bytes:
        try:
            found = read_regular(self._path)
        except FileNotFoundError:
            return b""
        return found if len(found) == _BYTES else b""

    def _write(self) -> bytes:
        """Make the file. Without its flush, a power cut may only change some salts."""
        made = secrets.token_bytes(_BYTES)
        new = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(new, flags, 0o600), "wb") as file:
                file.write(made)
            new.replace(self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        return made
