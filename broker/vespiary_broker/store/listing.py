"""`vespiary journal print`: each file, block and record of a journal, damaged or not, as data.

Owns: what is said of a record, and what of it is content (bodies, values of properties and of
bindings), which can be left out. Must never write, and holds one block at a time. Called by the
CLI.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.scanning import Block, scan_file, scan_folder
from vespiary_broker.store.survey import SurveyedFile
from vespiary_codec.journal.block import BlockHeader
from vespiary_codec.journal.branch import PrepareRecord, decode_branch
from vespiary_codec.journal.description import details, operation, type_name
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.record import (
    START,
    AddRecord,
    PutRecord,
    RawRecord,
    decode_record,
    walk_records,
)
from vespiary_codec.wire.stomp.properties import lines_in
from vespiary_native.abc import BlockVerifier

_HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the listing.

    Attributes:
        event: `file`, `record`, `hole` or `refused`.
        file: Name of the file.
        offset: Place in it.
        block: Sequence of the block; of a hole that of the block before it; 0 if there is none.
        time_ms: When the block was closed, milliseconds since 1970; of a file when it was made
            ready.
        operation: What the record does; of other lines what there is to say.
        type: Type of the record, 0 of other lines.
        flags: Its flags.
        length: Its length.
        fields: What it says, by name.
        properties: Headers of the message in order; values are `***` in safe mode.
        content: Body of a message or value of a binding, or all of a record of unknown type behind
            its first 8 bytes; None if there is none, and in safe mode.
        is_reclaimed: It stands in a file that was freed: it counts no more.
    """

    event: str
    file: str
    offset: int
    block: int
    time_ms: int
    operation: str
    type: int = 0
    flags: int = 0
    length: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    properties: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    is_reclaimed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as data for JSON; content in base64."""
        content = None if self.content is None else base64.b64encode(self.content).decode("ascii")
        if self.event != "record":
            return {
                "event": self.event,
                "file": self.file,
                "offset": self.offset,
                "block": self.block,
                "timeMs": self.time_ms,
                "what": self.operation,
                "isReclaimed": self.is_reclaimed,
            }
        return {
            "event": self.event,
            "file": self.file,
            "offset": self.offset,
            "block": self.block,
            "timeMs": self.time_ms,
            "operation": self.operation,
            "type": self.type,
            "flags": self.flags,
            "length": self.length,
            "fields": self.fields,
            "properties": list(self.properties),
            "content": content,
            "isReclaimed": self.is_reclaimed,
        }


def list_journal(
    folder: Path,
    form: FileForm,
    disk: DiskLike,
    verify: BlockVerifier,
    *,
    is_safe: bool = False,
    has_reclaimed: bool = False,
) -> Iterator[Entry]:
    """Yield all that stands in a journal, file by file in the order of their ids.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        disk: The file system.
        verify: The walk over valid blocks.
        is_safe: Leave content out.
        has_reclaimed: Then what still stands in files that were freed.

    Raises:
        NativeError: A file cannot be read.
    """
    found = scan_folder(folder, form, disk)
    for path, error in found.refused:
        yield Entry(
            event="refused", file=path.name, offset=0, block=0, time_ms=0, operation=str(error)
        )
    for file in found.active:
        yield from _file(file, disk, verify, is_safe=is_safe, is_reclaimed=False)
    if has_reclaimed:
        for file in sorted(found.free, key=lambda file: file.file_id):
            if file.file_id:
                yield from _file(file, disk, verify, is_safe=is_safe, is_reclaimed=True)


def _file(
    file: SurveyedFile, disk: DiskLike, verify: BlockVerifier, *, is_safe: bool, is_reclaimed: bool
) -> Iterator[Entry]:
    assert file.header is not None
    yield Entry(
        event="file",
        file=file.path.name,
        offset=0,
        block=0,
        time_ms=file.header.activated_ms,
        operation=f"file {file.file_id}, {file.size_bytes} bytes",
        is_reclaimed=is_reclaimed,
    )
    for item in scan_file(file, disk, verify):
        if isinstance(item, Block):
            yield from _block(item, is_safe=is_safe, is_reclaimed=is_reclaimed)
        elif item.after is not None or item.is_ours:
            yield Entry(
                event="hole",
                file=file.path.name,
                offset=item.offset,
                block=item.before.sequence if item.before else 0,
                time_ms=0,
                operation=f"no valid block up to {item.end}: {item.found}",
                is_reclaimed=is_reclaimed,
            )


def _block(block: Block, *, is_safe: bool, is_reclaimed: bool) -> Iterator[Entry]:
    facts = block.facts
    return _records(
        block.file.path.name,
        facts.offset,
        (facts.sequence, facts.records, facts.time_ms),
        block.data[64:],
        is_safe=is_safe,
        is_reclaimed=is_reclaimed,
    )


def entries_of(
    name: str, offset: int, block: BlockHeader, payload: memoryview, *, is_safe: bool
) -> Iterator[Entry]:
    """Yield the records of a block.

    Args:
        name: Name of the file.
        offset: Offset of the block in it.
        block: Its header.
        payload: Its payload.
        is_safe: Leave content out.
    """
    facts = (block.sequence, block.records, block.time_ms)
    return _records(name, offset, facts, payload, is_safe=is_safe, is_reclaimed=False)


def _records(
    name: str,
    block_at: int,
    facts: tuple[int, int, int],
    payload: memoryview,
    *,
    is_safe: bool,
    is_reclaimed: bool,
) -> Iterator[Entry]:
    sequence, records, time_ms = facts
    try:
        for raw in walk_records(payload, records, offset=block_at + 64):
            properties, content = _content(raw)
            if is_safe:
                properties = tuple((key, _HIDDEN) for key, _ in properties)
                content = None
            yield Entry(
                event="record",
                file=name,
                offset=raw.offset,
                block=sequence,
                time_ms=time_ms,
                operation=operation(raw),
                type=raw.type,
                flags=raw.flags,
                length=len(raw.data),
                fields={**dict(details(raw)), **_further(raw)},
                properties=properties,
                content=content,
                is_reclaimed=is_reclaimed,
            )
    except JournalFormatError as error:
        yield Entry(
            event="hole",
            file=name,
            offset=error.offset,
            block=sequence,
            time_ms=time_ms,
            operation=f"a valid block with a bad record: {error}",
            is_reclaimed=is_reclaimed,
        )


def _further(raw: RawRecord) -> dict[str, str]:
    """Return what else can be said of a record: the large body, the name of a branch."""
    record = _decoded(raw)
    try:
        if isinstance(record, AddRecord) and record.is_large:
            large = decode_large_reference(record.body)
            return {"largeID": f"{large.large_id:016x}", "largeBytes": str(large.size_bytes)}
        if isinstance(record, PrepareRecord):
            branch = decode_branch(record.branch)
            return {"xid": str(branch.xid), "time": str(branch.prepared_ms)}
    except JournalFormatError as error:
        return {"problem": error.what}
    return {}


def _decoded(raw: RawRecord) -> object:
    """Return what a record says; None if it does not decode, which `details` shows too."""
    try:
        return decode_record(raw)
    except JournalFormatError:
        return None


def _content(raw: RawRecord) -> tuple[tuple[tuple[str, str], ...], bytes | None]:
    """Return the properties and the content of a record."""
    record = _decoded(raw)
    if isinstance(record, AddRecord):
        lines = lines_in(record.properties).decode(errors="replace").split("\n")
        pairs = (line.partition(":") for line in lines if line)
        properties = tuple((name, value) for name, _, value in pairs)
        return properties, None if record.is_large else record.body
    if isinstance(record, PutRecord):
        return (), record.value
    if type_name(raw.type).isdecimal() or record is None:
        return (), bytes(raw.data[START.size :])
    return (), None
