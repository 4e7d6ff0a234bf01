"""What a reader should know first: tables in, sentences with cures out.

Owns: what is worth a sentence, how bad it is, and what to do about it. Pure. Called by `page` and
`text`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple

from vespiary_pipeline.report import measures
from vespiary_pipeline.report.tables import FileUse, Pin, ReportTables, Top

NEARLY_EMPTY: Final = 0.05
"""A used file with a smaller share of live bytes is nearly empty."""

LIVE_LOW: Final = 0.3
"""Below this share of live bytes a broker compacts (`journal-compact-percentage`)."""

FILES_MIN: Final = 10
"""Up to so many files a broker does not compact (`journal-compact-min-files`)."""

OFTEN: Final = 5
"""So many deliveries of one message are worth a look; at 10 it is a dead letter by default."""

PREPARED_OLD_S: Final = 600
"""A branch in doubt for longer than this is likely forgotten by its coordinator."""

NAME_WIDTH: Final = 60


class Level(IntEnum):
    """How bad a finding is; the worst first."""

    BAD = 0
    WARN = 1
    NOTE = 2


class Finding(NamedTuple):
    """One finding.

    Attributes:
        level: How bad it is.
        sentence: What was found.
        cure: What to do; empty: nothing.
        section: Id of the section that shows it.
        command: A command that helps; empty: none.
    """

    level: Level
    sentence: str
    cure: str
    section: str
    command: str = ""


def findings(tables: ReportTables) -> list[Finding]:
    """Return what was found, the worst first, else in a fixed order."""
    found = [
        *_damage(tables),
        *_prepared(tables),
        *_kept(tables),
        *_dead_space(tables),
        *_dead_letters(tables),
        *_redelivered(tables),
        *_growth(tables),
        *_paged(tables),
        *_clock(tables),
        *_torn(tables),
    ]
    return sorted(found, key=lambda one: one.level)


def name_of(name: str | None) -> str:
    """Return a name for a sentence: clean and short."""
    return measures.shorten(name, NAME_WIDTH) or "(empty)" if name is not None else "(unknown)"


def used(files: Top[FileUse]) -> list[FileUse]:
    """Return the files that hold blocks."""
    return [one for one in files.rows if one.used_bytes > 0]


def live_ratio(files: Top[FileUse]) -> float | None:
    """Return live bytes over used bytes, at most 1; None if nothing is used."""
    whole = sum(one.used_bytes for one in used(files))
    return min(1.0, sum(one.live_bytes for one in used(files)) / whole) if whole else None


def _command(words: str, path: str) -> str:
    return f"{words} {shlex.quote(measures.clean(path))}"


def _damage(tables: ReportTables) -> Iterator[Finding]:
    damage = tables.run.damage
    if not damage.count:
        return
    first = damage.rows[0] if damage.rows else None
    where = ""
    if first is not None:
        place = "" if first.offset is None else f":{first.offset}"
        where = f": {name_of(first.path)}{place}: {measures.shorten(first.what, 200)}"
    yield Finding(
        Level.BAD,
        f"{measures.plural(damage.count, 'place')} of the journal "
        f"{'is' if damage.count == 1 else 'are'} damaged{where}",
        "What stood there is missing in this report. Copy the folder, then restore the volume.",
        "run",
        _command("vespiary journal verify", tables.run.path),
    )


def _prepared(tables: ReportTables) -> Iterator[Finding]:
    branches = tables.prepared
    if not branches.count:
        return
    now = tables.run.made_at
    oldest = min((b.prepared_at for b in branches.rows if b.prepared_at), default=None)
    since = "" if oldest is None else f", the oldest for {_for(oldest, now)}"
    is_old = oldest is not None and measures.age_s(oldest, now) > PREPARED_OLD_S
    yield Finding(
        Level.WARN if is_old else Level.NOTE,
        f"{measures.plural(branches.count, 'prepared transaction')} "
        f"{'waits' if branches.count == 1 else 'wait'} for the coordinator{since}",
        "Bring the coordinator back, or decide in its place.",
        "transactions",
        "vespiary transaction list",
    )


def _for(at: datetime, now: datetime) -> str:
    return measures.span(max(0.0, measures.age_s(at, now)))


def _kept(tables: ReportTables) -> Iterator[Finding]:
    """Files that are nearly empty and cannot be reclaimed, by who keeps them."""
    full = used(tables.files)
    keepers: dict[str | None, list[Pin]] = {}
    for one in full:
        if one.live_bytes < NEARLY_EMPTY * one.used_bytes and one.pins.rows:
            pin = one.pins.rows[0]
            keepers.setdefault(pin.queue, []).append(pin)
    for queue, pins in sorted(keepers.items(), key=lambda item: -len(item[1]))[:3]:
        messages = sum(pin.messages for pin in pins)
        oldest = min((pin.oldest for pin in pins if pin.oldest), default=None)
        # Acknowledgements of a queue are kept by its old messages, so both are one finding.
        is_queue = messages > 0 and queue is not None
        why = (
            measures.plural(messages, "message") if messages else measures.shorten(pins[0].why, 40)
        )
        by = why if queue is None else f"{why} of queue {name_of(queue)}"
        old = "" if oldest is None else f", {_old(oldest, tables.run.made_at)} old"
        if oldest is not None and messages > 1:
            old = f", the oldest {_old(oldest, tables.run.made_at)} old"
        yield Finding(
            Level.WARN,
            f"{len(pins)} of {measures.plural(len(full), 'file')} "
            f"{'is' if len(pins) == 1 else 'are'} nearly empty and kept by {by}{old}",
            "Consume or move what keeps them. A running broker compacts by itself; a stopped one:"
            if is_queue
            else "They go when what keeps them goes. Of a stopped broker they can be compacted:",
            "files",
            _command("vespiary journal compact", tables.run.path),
        )


def _old(at: datetime, now: datetime) -> str:
    return measures.span(max(0.0, measures.age_s(at, now)))


def _dead_space(tables: ReportTables) -> Iterator[Finding]:
    full = used(tables.files)
    ratio = live_ratio(tables.files)
    if ratio is None or ratio >= LIVE_LOW or len(full) <= FILES_MIN:
        return
    whole = sum(one.used_bytes for one in full)
    causes: Counter[str] = Counter()
    for one in full:
        causes.update(one.dead)
    most = f", most of it {measures.shorten(causes.most_common(1)[0][0], 40)}" if causes else ""
    yield Finding(
        Level.WARN,
        f"{measures.share(1 - ratio, 1)} of {measures.size(whole)} in use is dead{most}",
        "A running broker compacts below 30 % live; of a stopped one give the space back:",
        "files",
        _command("vespiary journal compact", tables.run.path),
    )


def _dead_letters(tables: ReportTables) -> Iterator[Finding]:
    letters = tables.dead_letters
    total = sum(row.messages for row in letters.rows) + letters.rest
    if not letters.rows or not total:
        return
    reasons: Counter[str] = Counter()
    for row in letters.rows:
        reasons[row.reason] += row.messages
    reason, number = reasons.most_common(1)[0]
    first = letters.rows[0]
    origin = f" from {name_of(first.origin)}" if first.origin else ""
    queue = shlex.quote(name_of(first.address or "DLQ"))
    yield Finding(
        Level.WARN,
        f"{measures.plural(total, 'dead letter')}, {measures.share(number, total)} of them for "
        f"{measures.shorten(reason, 40)}; most{origin}",
        "Look at them, mend what fails, and send them back:",
        "dead-letters",
        f"vespiary queue retry {queue}",
    )


def _redelivered(tables: ReportTables) -> Iterator[Finding]:
    often = [spot for spot in tables.hot_spots.rows if spot.deliveries >= OFTEN]
    if not often:
        return
    worst = max(often, key=lambda spot: spot.deliveries)
    number = len(often) + (tables.hot_spots.more if len(often) == len(tables.hot_spots.rows) else 0)
    queue = name_of(worst.queue)
    yield Finding(
        Level.WARN,
        f"{measures.plural(number, 'message')} came back {OFTEN} times or more, message "
        f"{measures.count(worst.sequence)} of queue {queue} "
        f"{measures.count(worst.deliveries)} times",
        "Its consumer fails with it: look at the message.",
        "redelivery",
        f"vespiary browse {shlex.quote(queue)} --headers",
    )


def _growth(tables: ReportTables) -> Iterator[Finding]:
    adds = sum(row.adds for row in tables.traffic.rows)
    acks = sum(row.acks for row in tables.traffic.rows)
    if adds <= acks * 1.1 or adds - acks < 100:
        return
    yield Finding(
        Level.NOTE,
        f"{measures.count(adds - acks)} more messages came in than were acknowledged "
        f"({measures.count(adds)} against {measures.count(acks)}) in what the journal still holds",
        "If this is no burst, add consumers.",
        "traffic",
    )


def _paged(tables: ReportTables) -> Iterator[Finding]:
    if not tables.pages.rows:
        return
    first = tables.pages.rows[0]
    pages = sum(row.page_bytes for row in tables.pages.rows) + tables.pages.rest
    yield Finding(
        Level.NOTE,
        f"{measures.plural(tables.pages.count, 'address pages', 'addresses page')}: "
        f"{measures.size(pages)} on disk, most of it {name_of(first.address)}",
        "They did not fit in the memory that the address may use.",
        "pages",
    )


def _clock(tables: ReportTables) -> Iterator[Finding]:
    early = sum(one.live for one in tables.ages if one.high is not None and one.high <= 0)
    if early:
        yield Finding(
            Level.NOTE,
            f"{measures.plural(early, 'message')} came in after this report was made",
            "A clock is wrong, here or where the broker runs.",
            "ages",
        )


def _torn(tables: ReportTables) -> Iterator[Finding]:
    if tables.run.torn_bytes > 0:
        yield Finding(
            Level.NOTE,
            f"The journal ends in {measures.size(tables.run.torn_bytes)} that were never confirmed",
            "Nothing to do: the broker's start drops them.",
            "run",
        )
