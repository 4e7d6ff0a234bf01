"""How the files of journals are named.

Owns the names; what a file is, its header decides (journal-format §1). Must never look into
folders. Called by the store, by its tools and by the pipeline.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from vespiary_codec.journal.file_header import JournalKind


class FileForm(NamedTuple):
    """How the files of one kind of journal are named."""

    prefix: str
    extension: str
    kind: JournalKind

    def name(self, number: int) -> str:
        """Return the name of file `number`."""
        return f"{self.prefix}-{number}.{self.extension}"

    def number(self, name: str) -> int | None:
        """Return the number in a name, also of an unfinished file; None if it is no such name."""
        pattern = rf"{re.escape(self.prefix)}-(\d{{1,19}})\.{re.escape(self.extension)}(\.tmp)?"
        match = re.fullmatch(pattern, name, re.ASCII)
        return int(match[1]) if match else None


MESSAGE_FORM: Final = FileForm("activemq-data", "hq", JournalKind.MESSAGE)
BINDINGS_FORM: Final = FileForm("activemq-bindings", "bindings", JournalKind.BINDINGS)
JMS_FORM: Final = FileForm("activemq-jms", "jms", JournalKind.JMS)
FORMS: Final = {"message": MESSAGE_FORM, "bindings": BINDINGS_FORM, "jms": JMS_FORM}
"""By the journals' names."""

_COPY: Final = re.compile(
    rf"{MESSAGE_FORM.prefix}-(\d{{14}})-(\d{{1,19}})\.{MESSAGE_FORM.extension}", re.ASCII
)
_KEPT_BODY: Final = re.compile(r"(\d{14})-([0-9a-f]{16})\.msg", re.ASCII)
_PAGE: Final = re.compile(r"([0-9a-f]{16})\.page", re.ASCII)


def copy_parts(name: str) -> tuple[str, int] | None:
    """Return time (YYYYMMDDhhmmss, UTC) and file id in the name of a kept copy, None if it is none.

    Args:
        name: A file's name, as `activemq-data-20261122071801-7.hq`.
    """
    match = _COPY.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def kept_body_parts(name: str) -> tuple[str, int] | None:
    """Return time and body id in the name of a kept large body, None if it is no such name.

    Args:
        name: A file's name, as `20261122071801-000000000000002a.msg`.
    """
    match = _KEPT_BODY.fullmatch(name)
    return (match[1], int(match[2], 16)) if match else None


def page_number(name: str) -> int | None:
    """Return the page id in the name of a page's file, None if it is no such name."""
    match = _PAGE.fullmatch(name)
    return int(match[1], 16) if match else None
