"""What a start makes of the paging folder: the pages that the journal names must be there, whole.

Owns that judgement (the table below) and the removal of what crashes left. Must never remove a file
that may be somebody's: only pages of this journal that no record names, and files that never got
their name. Looks at both ends of each page, not at what stands between: that is verified when it is
read. Called by `pager` while it opens, in paging's thread.

| file                     | named by the journal | verdict                                   |
|--------------------------|----------------------|-------------------------------------------|
| whole                    | yes                  | taken                                     |
| missing or damaged       | yes                  | PageDamaged: the broker does not start    |
| whole, of this journal   | no                   | leftover of a crash: removed              |
| of another journal       | no                   | ForeignJournal: the broker does not start |
| header unreadable        | no                   | left alone, with a warning                |
| unfinished (`.page.tmp`) | –                    | leftover of a crash: removed              |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vespiary_broker.store.paging.folders import page_name, read_page_name
from vespiary_broker.store.paging.page_files import CURE, PageFile, PageFiles
from vespiary_spec.errors import PageDamaged, VespiaryError

_TOLD_MAX: Final = 20
"""So many problems are logged one by one; the rest are counted."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PagesFound:
    """What lies in the paging folder.

    Attributes:
        pages: Pages that the journal names, by id.
        leftovers: Files that nobody needs.
        odd: Files that look like pages and cannot be read.
        highest_id: Highest page id seen, 0 if none.
    """

    pages: dict[int, PageFile] = field(default_factory=dict)
    leftovers: list[Path] = field(default_factory=list)
    odd: list[Path] = field(default_factory=list)
    highest_id: int = 0


def survey_pages(files: PageFiles, named: Mapping[int, int]) -> PagesFound:
    """Judge all that lies in the paging folder; change nothing.

    Args:
        files: The page files.
        named: Salts of the pages that the journal names, by page id.

    Raises:
        PageDamaged: A page that the journal names is missing or damaged; all such are logged.
        ForeignJournal: A page is of another journal.
        NativeError: A folder or file cannot be read.
    """
    found = PagesFound(highest_id=max(named, default=0))
    damaged: list[VespiaryError] = []
    paths: dict[int, Path] = {}
    for path, page_id, is_unfinished in _walk(files):
        found.highest_id = max(found.highest_id, page_id)
        if is_unfinished:
            found.leftovers.append(path)
        elif page_id not in named:
            _judge_unnamed(files, path, found)
        elif page_id in paths:
            damaged.append(
                PageDamaged(
                    f"two files are page {page_id}",
                    where=str(path),
                    measured=str(paths[page_id]),
                    cure="one of them is a copy: move the copy elsewhere",
                )
            )
        else:
            paths[page_id] = path
    for page_id, salt in sorted(named.items()):
        try:
            found.pages[page_id] = _look(files, paths.get(page_id), page_id, salt)
        except PageDamaged as error:
            damaged.append(error)
    if damaged:
        _refuse(damaged, len(named))
    return found


def _walk(files: PageFiles) -> list[tuple[Path, int, bool]]:
    """Return (path, page id, is unfinished) of all files that have a page's name."""
    walked = []
    for folder in files.folders.walk():
        for name in files.disk.names(folder):
            read = read_page_name(name)
            if read is not None:
                walked.append((folder / name, *read))
    return walked


def _judge_unnamed(files: PageFiles, path: Path, found: PagesFound) -> None:
    try:
        header = files.read_header(path)
    except PageDamaged as error:
        log.warning("a file that no message is in is no page that can be read: %s", error)
        found.odd.append(path)
        return
    if header.journal_id != files.journal_id:
        raise files.foreign(path, header)
    found.leftovers.append(path)


def _look(files: PageFiles, path: Path | None, page_id: int, salt: int) -> PageFile:
    if path is None:
        raise PageDamaged(
            "a page that the journal names is missing",
            where=str(files.folders.directory / "*" / page_name(page_id)),
            cure=f"check that the volume of paging-directory is mounted; else {CURE}",
        )
    page = files.look(path, page_id, salt)
    expected = files.path(page.address, page_id)
    if expected != path:
        raise PageDamaged(
            "a page lies in the folder of another address",
            where=str(path),
            allowed=str(expected),
            cure="move the file back",
        )
    return page


def _refuse(damaged: list[VespiaryError], named: int) -> None:
    for error in damaged[:_TOLD_MAX]:
        log.error("%s", error)
    first = damaged[0]
    raise PageDamaged(
        first.what
        if len(damaged) == 1
        else f"{first.what} (and {len(damaged) - 1} more of {named} pages are lost or damaged)",
        where=first.where,
        measured=first.measured,
        allowed=first.allowed,
        cure=first.cure,
    ) from first


def remove_leftovers(files: PageFiles, found: PagesFound) -> int:
    """Remove what crashes left.

    Returns:
        How many files were removed.
    """
    removed = 0
    for path in found.leftovers:
        error = files.folders.remove_quietly(path)
        if error is None:
            removed += 1
        else:
            log.warning("a leftover page was not removed reason=%r", str(error))
    if found.leftovers:
        log.info(
            "pages that no message is in were removed count=%d of=%d", removed, len(found.leftovers)
        )
    return removed
