"""Pages: messages of an address that were moved out of the journal (journal-format §7).

Owns planning them: one part for each page; its blocks are read as those of a journal file. Called
by `source` on the driver.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page import HEADER_BYTES, decode_page_header
from vespiary_pipeline.files import open_file, read_at
from vespiary_pipeline.layout import Place, page_files
from vespiary_pipeline.plan import Part
from vespiary_pipeline.sources.journal import page_part
from vespiary_spec.errors import NativeError, PageDamaged


def plan_pages(place: Place, *, is_strict: bool = True) -> list[Part]:
    """Return a part for each page, by id.

    A page of which no PAGE record speaks any more may still be there: which of them count, the
    journal says (`transform.live`).

    Args:
        place: A paging folder, or the folder of one address.
        is_strict: Damage is an error; else it becomes a part that says so.

    Raises:
        PageDamaged: A page's header is damaged.
        NativeError: A file can't be read.
    """
    planned = (_planned(place, path, is_strict=is_strict) for path in page_files(place.path))
    return [part for part in planned if part is not None]


def _planned(place: Place, path: Path, *, is_strict: bool) -> Part | None:
    """Return the part of a page; None if its broker has removed it meanwhile."""
    try:
        descriptor = open_file(path)
    except NativeError as problem:
        if problem.errno == errno.ENOENT:
            return None
        raise
    try:
        size = os.fstat(descriptor).st_size
        data = read_at(descriptor, HEADER_BYTES, 0, path)
    finally:
        os.close(descriptor)
    try:
        header = decode_page_header(data)
    except JournalFormatError as problem:
        error = PageDamaged(
            "the page's header is damaged",
            where=f"{path}:{problem.offset}",
            measured=problem.found,
            allowed=str(problem.expected),
            cure="see docs/howto/paging.md",
        )
        if is_strict:
            raise error from problem
        return replace(page_part(path, 0, 0, size, place), state="damaged", error=str(error))
    return page_part(path, header.page_id, header.salt, size, place)
