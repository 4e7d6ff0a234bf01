"""What this version reads and writes, from the constants of the code that does it.

Owns: the list of the kinds of files. Must never name a number of its own. Called by the CLI.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.store.volumes import identity
from vespiary_codec.journal import file_header, page
from vespiary_spec.compatibility import SCHEMA, Compatibility, FileFormat
from vespiary_spec.version import VERSION

DOWNGRADE_TO: Final = "0.1.0"
"""Lowest version that reads what this one writes; raised whenever a format that is written is."""


def own_compatibility() -> Compatibility:
    """Return what this version says about its files."""
    return Compatibility(
        schema=SCHEMA,
        version=VERSION,
        formats=(
            FileFormat(
                name="journal",
                writes=file_header.FORMAT_VERSION,
                reads=file_header.READABLE_VERSIONS,
            ),
            FileFormat(
                name="page", writes=page.SKETCH_FORMAT_VERSION, reads=page.READABLE_VERSIONS
            ),
            FileFormat(name="stamp", writes=identity.FORMAT, reads=identity.READABLE_FORMATS),
        ),
        downgrade_to=DOWNGRADE_TO,
    )
