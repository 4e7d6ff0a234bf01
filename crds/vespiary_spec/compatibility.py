"""What a version says about the formats of its files: an upgrade is decided before it begins.

Owns: the JSON of `vespiary compatibility`, and the rules by which two versions' words are compared.
Never: reads a file or asks a registry. Called by: the CLI, which fills it in from the constants of
the code that reads and writes; the operator, which asks the images themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from vespiary_spec.errors import ConfigError

SCHEMA = 1
"""Version of the message. A reader takes its own and older ones."""

MESSAGE_BYTES_MAX = 3072
"""The kubelet keeps 12 KiB of termination messages for a whole pod, and each of its containers has
one."""


class FileFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of file.

    Attributes:
        name: `journal`, `page` or `stamp`.
        writes: Format that new files have.
        reads: Formats that are read.
    """

    name: str
    writes: int
    reads: tuple[int, ...]


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """What one version says.

    Attributes:
        schema: Version of this message.
        version: Version of the software.
        formats: Each kind of file.
        downgrade_to: Lowest version that reads what this one writes.
    """

    schema: int = msgspec.field(name="vespiaryCompatibility", default=0)
    version: str
    formats: tuple[FileFormat, ...]
    downgrade_to: str = msgspec.field(name="downgradeTo", default="")


class FormatMove(NamedTuple):
    """A kind of file that gets a format which the version before does not read.

    Attributes:
        name: Kind of file.
        before: Format so far.
        after: Format to come.
    """

    name: str
    before: int
    after: int

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.name} format {self.before} to {self.after}"


class Comparison(NamedTuple):
    """Whether files of one version can go to another.

    Attributes:
        refusal: Why they cannot, as one sentence; empty if they can.
        moves: Formats without a way back once the new version has written.
    """

    refusal: str = ""
    moves: tuple[FormatMove, ...] = ()


def encode(said: Compatibility) -> bytes:
    """Write what a version says.

    Returns:
        JSON in UTF-8 of at most `MESSAGE_BYTES_MAX` bytes, which `decode` reads.
    """
    data = msgspec.json.encode(said)
    assert len(data) <= MESSAGE_BYTES_MAX
    return data


def decode(data: bytes | str) -> Compatibility:
    """Read what a version says.

    Raises:
        ConfigError: It is empty, no such message, or of a newer schema.
    """
    try:
        said = msgspec.json.decode(data, type=Compatibility)
    except msgspec.DecodeError as error:
        raise ConfigError(
            "the image does not say which formats it reads and writes",
            path="termination message",
            value=(data if isinstance(data, str) else data.decode("utf-8", "replace"))[:200],
            cure="use an image whose program knows `vespiary compatibility`",
        ) from error
    if not 1 <= said.schema <= SCHEMA:
        raise ConfigError(
            "the image speaks another version of the message",
            path="termination message",
            value=said.schema,
            allowed=f"1 to {SCHEMA}",
            cure="upgrade the operator first",
        )
    return said


def compare(before: Compatibility, after: Compatibility) -> Comparison:
    """Compare two versions: may `after` open what `before` wrote, and may it go back?

    A kind of file that only one of them knows is no hindrance: the other leaves it alone.
    """
    known = {item.name: item for item in after.formats}
    moves = []
    for old in before.formats:
        new = known.get(old.name)
        if new is None:
            continue
        if old.writes not in new.reads:
            return Comparison(
                refusal=f"Version {after.version} reads {old.name} files of format "
                f"{_listed(new.reads)}, and version {before.version} writes format {old.writes}."
            )
        if new.writes not in old.reads:
            moves.append(FormatMove(old.name, old.writes, new.writes))
    return Comparison(moves=tuple(moves))


def compare_all(before: Iterable[Compatibility], after: Compatibility) -> Comparison:
    """Compare every version whose files there may be with the one that is wanted."""
    moves: dict[FormatMove, None] = {}
    for version in before:
        found = compare(version, after)
        if found.refusal:
            return found
        moves.update(dict.fromkeys(found.moves))
    return Comparison(moves=tuple(moves))


def _listed(formats: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(formats))) or "none"
