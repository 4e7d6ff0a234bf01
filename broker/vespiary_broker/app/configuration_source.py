"""Where a broker's configuration comes from, so that it can be read again.

Owns the files' digests. Must never check what a configuration says. Made by the commands that start
a broker, read by `reloading`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vespiary_spec.regular_files import read_regular
from vespiary_spec.settings import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationSource:
    """Where a configuration comes from.

    Attributes:
        files: The files.
        optional: Those of them that may be missing.
        digests: Their digests when the broker's first configuration was read.
        read: Reads them again, and checks what they say.
        log_level: Returns the level of log lines that a configuration asks for; None: another
            setting has decided.
    """

    files: tuple[Path, ...] = ()
    optional: frozenset[Path] = frozenset()
    digests: dict[str, str] = field(default_factory=dict)
    read: Callable[[], Configuration] | None = None
    log_level: Callable[[Configuration], str] | None = None


def digests_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by path, as hexadecimal digits; empty for what is not there."""
    found = {}
    for path in files:
        try:
            found[str(path)] = hashlib.sha256(read_regular(path)).hexdigest()
        except OSError:
            found[str(path)] = ""
    return found
