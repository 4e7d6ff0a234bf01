"""The part of the page on files: how full they are, why not, and what keeps them.

Owns: the strip of tiles, dead space by cause, the table of what pins each file. Called by `page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vespiary_pipeline.report import charts, findings, measures
from vespiary_pipeline.report.markup import Markup, join, named, tag
from vespiary_pipeline.report.sections import BARS_MAX, Section, numbers, table
from vespiary_pipeline.report.style import SERIES
from vespiary_pipeline.report.tables import DEAD_CAUSES, FileUse, Pin, ReportTables

TILES_MAX: Final = 240
"""Tiles of the strip; with more files a tile stands for several."""

_LEVELS: Final = ((0.05, "l0"), (0.3, "l1"), (0.6, "l2"), (0.9, "l3"), (2.0, "l4"))
_CAUSES_MAX: Final = 5


def files(tables: ReportTables) -> Section:
    """Return how full the journal's files are, and what keeps them."""
    heading = "Files of the journal"
    rows = tables.files.rows
    if not rows:
        return Section("files", heading, "There is no file.", Markup(""))
    sentence = _sentence(tables)
    tiles = _tiles(rows, tables)
    key = (
        charts.Series("under 5 % live", "l0"),
        charts.Series("under 30 %", "l1"),
        charts.Series("under 60 %", "l2"),
        charts.Series("under 90 %", "l3"),
        charts.Series("more", "l4"),
        charts.Series("empty (ahead or free)", "hollow"),
        charts.Series("dot: nearly empty, and kept", "pin"),
    )
    per = -(-len(rows) // TILES_MAX)
    one_tile = f"Each tile stands for {per} files. " if per > 1 else ""
    more = (
        f"{measures.plural(tables.files.more, 'file')} more are not shown. "
        if tables.files.more
        else ""
    )
    about = f"{one_tile}{more}{sentence}"
    return Section(
        "files",
        heading,
        sentence,
        join(
            charts.legend(key),
            charts.both(lambda w: charts.strip(w, heading, about, tiles)),
            tag("p", f"{one_tile}{more}", class_="quiet") if one_tile or more else "",
            _dead(tables),
            _pins(tables),
            _numbers(tables),
        ),
    )


def _sentence(tables: ReportTables) -> str:
    full = findings.used(tables.files)
    if not full:
        return (
            f"{measures.plural(tables.files.count, 'file')}, none of which holds anything: "
            "the journal is empty."
        )
    whole = sum(one.used_bytes for one in full)
    ratio = findings.live_ratio(tables.files) or 0.0
    kept = sum(1 for one in full if one.pins.rows)
    low = sum(1 for one in full if one.live_bytes < findings.NEARLY_EMPTY * one.used_bytes)
    return (
        f"{len(full)} of {measures.plural(tables.files.count, 'file')} "
        f"{'holds' if len(full) == 1 else 'hold'} {measures.size(whole)}, "
        f"{measures.share(ratio, 1)} of it live; {kept} kept by something, {low} nearly empty."
    )


def _ratio(rows: Sequence[FileUse]) -> float | None:
    whole = sum(row.used_bytes for row in rows)
    return sum(row.live_bytes for row in rows) / whole if whole > 0 else None


def _is_held(row: FileUse) -> bool:
    return bool(row.pins.rows) and 0 < row.used_bytes * findings.NEARLY_EMPTY > row.live_bytes


def _style(ratio: float | None) -> str:
    if ratio is None:
        return "hollow"
    return next(style for most, style in _LEVELS if ratio < most or most > 1)


def _tiles(rows: Sequence[FileUse], tables: ReportTables) -> list[charts.Tile]:
    per = -(-len(rows) // TILES_MAX)
    groups = [rows[n : n + per] for n in range(0, len(rows), per)]
    return [
        charts.Tile(
            _style(_ratio(group)), _title(group, tables), any(_is_held(row) for row in group)
        )
        for group in groups
    ]


def _title(group: Sequence[FileUse], tables: ReportTables) -> str:
    first, last = group[0], group[-1]
    name = findings.name_of(first.name)
    if last is not first:
        name = f"{name} to {findings.name_of(last.name)}"
    used = sum(row.used_bytes for row in group)
    live = sum(row.live_bytes for row in group)
    if not used:
        return f"{name}: {measures.shorten(first.state, 20)}, holds nothing"
    kept = next((row.pins.rows[0] for row in group if row.pins.rows), None)
    by = "" if kept is None else f"; kept by {_pin(kept, tables)}"
    return f"{name}: {measures.share(live, used)} of {measures.size(used)} live{by}"


def _pin(pin: Pin, tables: ReportTables) -> str:
    what = (
        measures.plural(pin.messages, "message")
        if pin.why == "live messages"
        else measures.shorten(pin.why, 40)
    )
    queue = "" if pin.queue is None else f" of queue {findings.name_of(pin.queue)}"
    old = measures.age(pin.oldest, tables.run.made_at)
    return f"{what}{queue}" + ("" if old == "-" else f", the oldest {old}")


def causes(rows: Sequence[FileUse]) -> list[str]:
    """Return why bytes are dead, known causes first, then others, the largest first."""
    sums: dict[str, int] = {}
    for row in rows:
        for cause, dead in row.dead.items():
            sums[cause] = sums.get(cause, 0) + dead
    others = sorted((c for c in sums if c not in DEAD_CAUSES), key=lambda c: -sums[c])
    return [c for c in (*DEAD_CAUSES, *others) if sums.get(c, 0) > 0]


def _dead(tables: ReportTables) -> Markup:
    """Draw dead space by cause: of all files, and of those with most of it."""
    full = findings.used(tables.files)
    order = causes(full)
    if not order:
        return Markup("")
    shown = order[:_CAUSES_MAX]
    series = [
        charts.Series(measures.shorten(cause, 40), style)
        for cause, style in zip(shown, SERIES, strict=False)
    ]
    if len(order) > len(shown):
        series.append(charts.Series("other causes", SERIES[-1]))

    def parts(row: FileUse) -> list[float]:
        known = [float(row.dead.get(cause, 0)) for cause in shown]
        rest = sum(dead for cause, dead in row.dead.items() if cause not in shown)
        return [*known, float(rest)][: len(series)]

    worst = sorted(full, key=lambda row: -sum(row.dead.values()))[: BARS_MAX - 5]
    rows = [
        charts.Bar(
            row.name,
            parts(row),
            measures.size(sum(parts(row))),
            f"{findings.name_of(row.name)}: "
            + ", ".join(
                f"{measures.size(part)} {one.name}"
                for one, part in zip(series, parts(row), strict=True)
                if part
            ),
        )
        for row in worst
        if sum(row.dead.values()) > 0
    ]
    total = sum(sum(row.dead.values()) for row in full)
    first = max(shown, key=lambda cause: sum(row.dead.get(cause, 0) for row in full))
    most = sum(row.dead.get(first, 0) for row in full)
    sentence = (
        f"{measures.size(total)} are dead, {measures.share(most, total)} of them "
        f"{measures.shorten(first, 40)}. The files with most of it:"
    )
    heading = "Dead space by cause"
    return join(
        tag("h3", heading),
        tag("p", sentence),
        charts.legend(series),
        charts.both(lambda w: charts.bars(w, heading, sentence, series, rows)),
    )


def _pins(tables: ReportTables) -> Markup:
    """Return the emptiest files that are kept, and what keeps them."""
    kept = sorted(
        (row for row in findings.used(tables.files) if row.pins.rows),
        key=lambda row: row.live_bytes / row.used_bytes,
    )
    if not kept:
        return Markup("")
    now = tables.run.made_at
    rows = [
        (
            named(row.name, width=40),
            measures.share(row.live_bytes, row.used_bytes),
            measures.shorten(pin.why, 40),
            named(pin.queue, otherwise="-"),
            pin.messages,
            "-" if pin.sequence is None else measures.count(pin.sequence),
            measures.age(pin.oldest, now),
            f"and {row.pins.count - 1} more" if row.pins.count > 1 else "",
        )
        for row in kept[:BARS_MAX]
        for pin in row.pins.rows[:1]
    ]
    heads = ("file", "live#", "kept by", "queue", "messages#", "oldest is number#", "age", "")
    return join(
        tag("h3", "What keeps the emptiest files"),
        table("what keeps files", heads, rows, len(kept) - len(rows)),
    )


def _numbers(tables: ReportTables) -> Markup:
    rows = [
        (
            named(row.name, width=40),
            measures.shorten(row.state, 20),
            measures.size(row.size_bytes),
            measures.size(row.used_bytes),
            measures.size(row.live_bytes),
            measures.share(row.live_bytes, row.used_bytes),
            ", ".join(
                f"{measures.shorten(cause, 40)} {measures.size(dead)}"
                for cause, dead in list(row.dead.items())[:8]
                if dead
            )
            or "-",
        )
        for row in tables.files.rows[:101]
    ]
    heads = ("file", "state", "size#", "used#", "live#", "share#", "dead by cause")
    return numbers("files", heads, rows, tables.files.count - len(rows))
