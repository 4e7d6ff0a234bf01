"""The part of the page on traffic: what came in and went out, by address, over time.

Owns: which addresses get a colour, and how stretches are merged until a page can show them. Called
by `page`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from vespiary_pipeline.report import charts, findings, measures, scales
from vespiary_pipeline.report.markup import Markup, join, named, tag
from vespiary_pipeline.report.sections import Section, numbers
from vespiary_pipeline.report.style import SERIES
from vespiary_pipeline.report.tables import ReportTables, Traffic, TrafficRow

MOMENTS_MAX: Final = 180
"""Columns over time; more stretches are merged."""

_NAMED_MAX: Final = 5
_UNITS: Final = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))

Sums = list[int]  # adds, acks, bytes in, bytes out


def traffic(tables: ReportTables) -> Section:
    """Return what went through addresses over time."""
    heading = "Traffic by address"
    given = tables.traffic
    by_address = _by_address(given)
    if not by_address:
        return Section("traffic", heading, "No message came in or went out.", Markup(""))
    ranked = sorted(
        (name for name in by_address if name is not None), key=lambda name: -by_address[name][0]
    )
    shown = ranked[:_NAMED_MAX]
    left = len(ranked) - len(shown) + given.more_addresses
    step_s, moments = merge(given)
    adds = sum(sums[0] for sums in by_address.values())
    acks = sum(sums[1] for sums in by_address.values())
    start, last = min(moments), max(moments)
    whole_s = (last - start).total_seconds() + step_s
    top = (
        f"{measures.share(by_address[shown[0]][0], adds)} of them to {findings.name_of(shown[0])}"
        if shown and adds
        else "none of them to an address that is named"
    )
    sentence = (
        f"{measures.plural(adds, 'message')} came in within {measures.span(whole_s)}, {top}; "
        f"{measures.count(acks)} were acknowledged."
    )
    series = [
        charts.Series(measures.shorten(name, 40) or "(empty)", SERIES[n])
        for n, name in enumerate(shown)
    ]
    if left or None in by_address:
        words = measures.plural(left, "other address", "other addresses") if left else "the others"
        series.append(charts.Series(words, SERIES[-1]))

    def draw(name: str, field: int, line: int, unit: Callable[[float], str]) -> Markup:
        return _panel(name, series, shown, moments, step_s, (field, line), unit)

    rows = [
        (
            named(name, otherwise=f"{measures.count(given.more_addresses)} others"),
            sums[0],
            sums[1],
            measures.size(sums[2]),
            measures.size(sums[3]),
        )
        for name, sums in sorted(
            by_address.items(), key=lambda item: (item[0] is None, -item[1][0])
        )
    ]
    return Section(
        "traffic",
        heading,
        sentence,
        join(
            charts.legend([*series, charts.Series("line: acknowledged", "overkey")]),
            tag("h3", f"Messages in each {_length(step_s)}"),
            draw("Messages by address", 0, 1, measures.count),
            tag("h3", f"Bytes in each {_length(step_s)}"),
            draw("Bytes by address", 2, 3, measures.size),
            tag("p", "Times are UTC.", class_="quiet"),
            numbers(
                "traffic by address", ("address", "in#", "out#", "bytes in#", "bytes out#"), rows
            ),
        ),
    )


def _length(step_s: int) -> str:
    """Return the length of a stretch: `hour`, `2 hours`."""
    return next(
        name if step_s == unit else measures.plural(step_s // unit, name)
        for unit, name in _UNITS
        if step_s % unit == 0
    )


def _add(sums: Sums, row: TrafficRow) -> None:
    for n, value in enumerate((row.adds, row.acks, row.bytes_in, row.bytes_out)):
        sums[n] += max(value, 0)


def _by_address(given: Traffic) -> dict[str | None, Sums]:
    found: dict[str | None, Sums] = {}
    for row in given.rows:
        _add(found.setdefault(row.address, [0, 0, 0, 0]), row)
    return found


def merge(given: Traffic) -> tuple[int, dict[datetime, dict[str | None, Sums]]]:
    """Return sums by stretch and address, and the length of a stretch, seconds.

    Neighbours are merged, a whole number of them into one, until there are at most `MOMENTS_MAX`.

    Args:
        given: Traffic with at least one row.
    """
    width = max(1, given.width_s)
    low = min(row.start for row in given.rows).astimezone(UTC)
    high = max(row.start for row in given.rows).astimezone(UTC)
    number = int((high - low).total_seconds() // width) + 1
    step = width * -(-number // MOMENTS_MAX)
    moments: dict[datetime, dict[str | None, Sums]] = {}
    for row in given.rows:
        place = int((row.start - low).total_seconds() // step)
        sums = moments.setdefault(low + timedelta(seconds=place * step), {})
        _add(sums.setdefault(row.address, [0, 0, 0, 0]), row)
    return step, moments


def _panel(
    title: str,
    series: Sequence[charts.Series],
    shown: Sequence[str],
    moments: dict[datetime, dict[str | None, Sums]],
    step_s: int,
    fields: tuple[int, int],
    unit: Callable[[float], str],
) -> Markup:
    stacked, line = fields
    drawn: list[charts.Moment] = []
    for start in sorted(moments):
        sums = moments[start]
        parts = [float(sums[name][stacked]) if name in sums else 0.0 for name in shown]
        whole = float(sum(one[stacked] for one in sums.values()))
        out = float(sum(one[line] for one in sums.values()))
        if len(series) > len(shown):
            parts.append(max(0.0, whole - sum(parts)))
        lines = [
            f"{one.name}: {unit(part)}" for one, part in zip(series, parts, strict=True) if part
        ]
        words = "\n".join(
            (f"{measures.instant(start)} UTC: {unit(whole)} in, {unit(out)} out", *lines)
        )
        drawn.append(charts.Moment(start, parts, out, words))
    most = max(max(sum(one.parts), one.line) for one in drawn)
    ticks = scales.size_ticks(most) if unit is measures.size else scales.count_ticks(most)
    about = (
        f"Stacked columns, one for each {_length(step_s)}, at most {unit(most)}; "
        "a line shows what was acknowledged."
    )
    return charts.both(lambda w: charts.timeline(w, title, about, series, drawn, step_s, ticks))
