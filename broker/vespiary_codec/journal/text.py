"""The text form of a journal (docs/internals/journal-format.md §6): one line, one record.

Owns the lines: their fields, their checksums, and the totals at the end. Sans-I/O: lines go in and
come out as bytes, files belong to the caller. A record travels as its own bytes (`data`), so types
that this version does not know come back byte by byte; the other fields are for people, and a line
whose fields say something else than its data is refused. Called by the store's export and import
and by the pipeline.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.description import details, operation
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import RawRecord, align8, walk_records

VERSION: Final = 1
_HEADER: Final = "#Vespiary journal"
_HEADER_FORM: Final = re.compile(
    r"#Vespiary journal, version (\d{1,9})(?:, kind ([A-Z]+), id ([0-9a-f]{32}))?"
)
_CRC_FORM: Final = re.compile(rb"(.*),crc@([0-9a-f]{8})\n", re.DOTALL)
_DATA_FORM: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_FIXED: Final = ("operation", "data")
"""Fields that are not compared: a later version may have a name for a type; `data` is it."""


class LineKind(Enum):
    """What a line is."""

    HEADER = "header"
    FILE = "file"
    GAP = "gap"
    RECORD = "record"
    TOTALS = "totals"


class TextFormError(ValueError):
    """A line is not what the text form says.

    Attributes:
        line: Its number, from 1.
        found: What stands there: never content.
        expected: What should.
    """

    def __init__(self, what: str, *, line: int, found: object, expected: object) -> None:
        super().__init__(f"{what} in line {line}: found {found}, expected {expected}")
        self.what = what
        self.line = line
        self.found = found
        self.expected = expected

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the attributes when the error crosses a process border."""
        return _rebuild, (self.what, self.line, self.found, self.expected)


def _rebuild(what: str, line: int, found: object, expected: object) -> TextFormError:
    return TextFormError(what, line=line, found=found, expected=expected)


class TextHeader(NamedTuple):
    """The first line: kind and id of the journal that was exported."""

    kind: JournalKind
    journal_id: bytes


class Line(NamedTuple):
    """One line, checked.

    Attributes:
        kind: What it is.
        number: From 1.
        fields: Its fields by name.
        record: The bytes of the record without padding; empty if it is another kind of line.
        header: What the first line says.
    """

    kind: LineKind
    number: int
    fields: dict[str, str]
    record: bytes = b""
    header: TextHeader | None = None


def _finish(text: str) -> bytes:
    line = text.encode("ascii")
    return line + b",crc@%08x\n" % crc32c(line)


def _pairs(fields: tuple[tuple[str, str], ...]) -> str:
    return "".join(f",{name}@{value}" for name, value in fields)


class TextWriter:
    """Makes the lines of one export, and counts them for the totals."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._types: Counter[int] = Counter()
        self.records = 0
        self.record_bytes = 0

    def header(self, kind: JournalKind, journal_id: bytes) -> bytes:
        """Return the first line.

        Args:
            kind: Kind of the journal.
            journal_id: Its 16 bytes.
        """
        return _finish(f"{_HEADER}, version {VERSION}, kind {kind.name}, id {journal_id.hex()}")

    def file(self, name: str, file_id: int, size_bytes: int) -> bytes:
        """Return the line that says in which file the records behind it stand.

        Args:
            name: Name of the file.
            file_id: Its id.
            size_bytes: Its size.
        """
        fields = (("name", name.replace(",", "_")), ("id", str(file_id)), ("size", str(size_bytes)))
        return _finish("#File" + _pairs(fields))

    def gap(self) -> bytes:
        """Return the line that says: before the next record files were reclaimed (§3.3)."""
        line = _finish("#Gap")
        self._digest.update(line)
        return line

    def record(self, raw: RawRecord) -> bytes:
        """Return the line of a record.

        Args:
            raw: The record, without padding.
        """
        data = bytes(raw.data)
        line = _finish(f"operation@{operation(raw)}{_pairs(_fields(raw, data))}")
        self._count(raw.type, data, line)
        return line

    def totals(self) -> bytes:
        """Return the last line."""
        return _finish("#Totals" + _pairs(self._totals()))

    def _count(self, type_: int, data: bytes, line: bytes) -> None:
        self._digest.update(line)
        self._types[type_] += 1
        self.records += 1
        self.record_bytes += len(data)

    def _totals(self) -> tuple[tuple[str, str], ...]:
        types = ";".join(f"{type_}:{count}" for type_, count in sorted(self._types.items()))
        return (
            ("records", str(self.records)),
            ("bytes", str(self.record_bytes)),
            ("types", types),
            ("sha256", self._digest.hexdigest()),
        )


def _fields(raw: RawRecord, data: bytes) -> tuple[tuple[str, str], ...]:
    return (
        ("type", str(raw.type)),
        ("flags", str(raw.flags)),
        *details(raw),
        ("length", str(len(data))),
        ("data", base64.urlsafe_b64encode(data).decode("ascii")),
    )


class TextReader(TextWriter):
    """Checks the lines of one export, one after the other.

    Attributes:
        is_complete: Whether the totals have come and were right: only then it is a whole export.
        number: Lines read, which is the number of the last one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_complete = False
        self.number = 0

    def read(self, line: bytes) -> Line:
        """Return what a line says.

        Args:
            line: The line with its line feed.

        Raises:
            TextFormError: It is damaged, cut off, out of place, or the totals do not fit.
        """
        self.number += 1
        number = self.number
        text = self._checked(line)
        if self.is_complete:
            self._refuse("a line behind the totals", text[:20], "the end of the text")
        if number == 1:
            return Line(LineKind.HEADER, 1, {}, header=self._header(text))
        first, *rest = text.split(",")
        fields = self._named(rest)
        if first == "#File":
            return Line(LineKind.FILE, number, fields)
        if first == "#Gap":
            self._digest.update(line)
            return Line(LineKind.GAP, number, fields)
        if first == "#Totals":
            self._check_totals(fields)
            self.is_complete = True
            return Line(LineKind.TOTALS, number, fields)
        name, _, value = first.partition("@")
        if name != "operation":
            self._refuse("an unknown kind of line", first[:40], "a record, #File, #Gap or #Totals")
        raw = self._record({"operation": value, **fields})
        self._count(raw.type, bytes(raw.data), line)
        return Line(LineKind.RECORD, number, fields, bytes(raw.data))

    def end(self) -> None:
        """Check that the text was whole when it ended.

        Raises:
            TextFormError: There was no totals line.
        """
        if not self.is_complete:
            self.number += 1
            self._refuse("the text ends too early", "its end", "more records or the totals line")

    def _checked(self, line: bytes) -> str:
        if not line.endswith(b"\n"):
            self._refuse("a line that is cut off", f"{len(line)} bytes", "a line feed at its end")
        match = _CRC_FORM.fullmatch(line)
        if match is None:
            self._refuse("a line without checksum", f"{len(line)} bytes", "crc@ and 8 digits")
        computed = f"{crc32c(match[1]):08x}"
        if match[2].decode("ascii") != computed:
            self._refuse("a damaged line", f"crc@{match[2].decode('ascii')}", f"crc@{computed}")
        try:
            return match[1].decode("ascii")
        except UnicodeDecodeError:
            self._refuse("a line that is not ASCII", "another character", "ASCII")

    def _header(self, text: str) -> TextHeader:
        match = _HEADER_FORM.match(text)
        if match is None:
            self._refuse("no header", text[:40], f"{_HEADER}, version {VERSION}, …")
        if int(match[1]) != VERSION or match[2] is None:
            self._refuse("another version of the text form", match[1], VERSION)
        if match[2] not in JournalKind.__members__:
            self._refuse("an unknown kind of journal", match[2], ", ".join(JournalKind.__members__))
        return TextHeader(JournalKind[match[2]], bytes.fromhex(match[3]))

    def _named(self, parts: list[str]) -> dict[str, str]:
        fields: dict[str, str] = {}
        for part in parts:
            name, mark, value = part.partition("@")
            if not mark or name in fields:
                self._refuse("a bad field", f"{part[:40]}", "key@value, each key once")
            fields[name] = value
        return fields

    def _record(self, fields: dict[str, str]) -> RawRecord:
        """Return the record of a line, when all that the line says of it is true."""
        try:
            if not _DATA_FORM.fullmatch(fields.get("data", "-")):
                raise binascii.Error
            data = base64.urlsafe_b64decode(fields["data"])
            padded = data.ljust(align8(len(data)), b"\0")
            raw = next(walk_records(padded, 1))
            if len(raw.data) != len(data):
                self._refuse("a record of another length", len(raw.data), len(data))
        except (binascii.Error, KeyError, ValueError) as error:
            if isinstance(error, TextFormError):
                raise
            found = error.what if isinstance(error, JournalFormatError) else "no URL-safe base64"
            self._refuse("bad data of a record", found, "one record of the journal")
        said = dict(_fields(raw, data))
        for name in ("type", "flags", "length"):
            if name not in fields:
                self._refuse("a missing field", "nothing", f"{name}@{said[name]}")
        for name, value in said.items():
            if name not in _FIXED and fields.get(name, value) != value:
                self._refuse(
                    "a field that its data does not say", f"{name}@{fields[name][:40]}", value[:40]
                )
        return raw

    def _check_totals(self, fields: dict[str, str]) -> None:
        for name, value in self._totals():
            if fields.get(name) != value:
                self._refuse(
                    f"totals that do not fit: {name}", fields.get(name, "nothing")[:80], value[:80]
                )

    def _refuse(self, what: str, found: object, expected: object) -> NoReturn:
        raise TextFormError(what, line=self.number, found=found, expected=expected)
