"""Pictures: numbers in, SVG out.

Owns: the drawing. Colours come from the page's style by class, so a picture follows light, dark and
print. Each picture has a title and a description for those who cannot see it, and each shape a
title of its own, which a browser shows under the pointer. Must never know what a number means.
Called by `sections`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from vespiary_pipeline.report import scales
from vespiary_pipeline.report.markup import Markup, isolated, join, tag

WIDE: Final = 1000
NARROW: Final = 340

_LETTER: Final = 7.5
_GAP: Final = 1.0
_BAR: Final = 18
_ROW: Final = 27
_PLOT: Final = 200
_LEFT: Final = 58
_TOP: Final = 12
_TICKS: Final = 26
_THICK: Final = 0.75


class Series(NamedTuple):
    """A colour of a picture.

    Attributes:
        name: What it stands for.
        style: Class of the page's style that colours it.
    """

    name: str
    style: str


class Bar(NamedTuple):
    """A row of `bars`.

    Attributes:
        name: Its label.
        parts: Its parts, one for each series.
        value: What stands at its end.
        title: What the pointer shows.
    """

    name: str
    parts: Sequence[float]
    value: str
    title: str


class Tile(NamedTuple):
    """A tile of `strip`.

    Attributes:
        style: Class that colours it.
        title: What the pointer shows.
        is_pinned: It has a dot.
    """

    style: str
    title: str
    is_pinned: bool


def both(draw: Callable[[int], Markup]) -> Markup:
    """Return a picture twice, for a wide and for a narrow page; the style shows one of them."""
    return join(
        tag("div", draw(WIDE), class_="wide"),
        tag("div", draw(NARROW), class_="narrow"),
    )


def picture(width: float, height: float, title: str, about: str, *shapes: str) -> Markup:
    """Return an SVG of shapes.

    Args:
        width: Its width, units of the drawing.
        height: Its height.
        title: Its name.
        about: What it shows, for those who cannot see it.
        shapes: What is in it.
    """
    return tag(
        "svg",
        tag("title", title),
        tag("desc", about),
        *shapes,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"{title}. {about}",
    )


def _text(x: float, y: float, words: str, anchor: str = "start", style: str = "label") -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=style)


def legend(series: Sequence[Series]) -> Markup:
    """Return what each colour stands for, as a list."""
    swatch = [
        tag(
            "li",
            tag(
                "svg",
                tag("rect", width=12.0, height=12.0, rx=2.0, class_=one.style),
                viewBox="0 0 12 12",
                class_="swatch",
                aria_hidden="true",
            ),
            tag("bdi", one.name),
        )
        for one in series
    ]
    return tag("ul", *swatch, class_="legend")


def bars(
    width: int, title: str, about: str, series: Sequence[Series], rows: Sequence[Bar]
) -> Markup:
    """Draw horizontal bars of stacked parts; the longest fills the width.

    Args:
        width: Width of the drawing; a narrow one has each label above its bar.
        title: Its name.
        about: What it shows.
        series: What each part of a row is.
        rows: The bars.
    """
    is_narrow = width < WIDE
    label = 0.0 if is_narrow else 190.0
    value = 8 + _LETTER * max((len(row.value) for row in rows), default=0)
    room = width - label - value
    row_height = _ROW + (16 if is_narrow else 0)
    most = max((sum(row.parts) for row in rows), default=0) or 1
    shapes: list[Markup] = []
    for n, row in enumerate(rows):
        top = n * row_height + (18 if is_narrow else 4)
        base = top + _BAR * _THICK
        name = isolated(row.name, 44 if is_narrow else 25)
        x, y, anchor = (0.0, top - 5.0, "start") if is_narrow else (label - 8, base, "end")
        drawn: list[Markup] = [tag("title", row.title), _text(x, y, name, anchor)]
        x = label
        for one, part in zip(series, row.parts, strict=True):
            length = room * part / most
            if part > 0:
                shown = max(length - _GAP, 1.0)
                drawn.append(
                    tag("rect", x=x, y=float(top), width=shown, height=_BAR, rx=2, class_=one.style)
                )
            x += length
        drawn.append(_text(x + 6, base, row.value, style="label strong"))
        shapes.append(tag("g", *drawn))
    return picture(width, max(len(rows) * row_height, 1), title, about, *shapes)


def _frame(
    width: int, ticks: Sequence[scales.Tick]
) -> tuple[list[Markup], Callable[[float], float]]:
    """Return the lines of the vertical axis, and where a value stands on it."""
    most = ticks[-1].value or 1

    def y(value: float) -> float:
        return _TOP + _PLOT * (1 - value / most)

    lines: list[Markup] = []
    for tick in ticks:
        style = "axis" if tick.value == 0 else "grid"
        at = y(tick.value)
        lines.append(tag("line", x1=_LEFT, x2=width, y1=at, y2=at, class_=style))
        lines.append(_text(_LEFT - 8, at + 4, tick.label, "end"))
    return lines, y


def _column(x: float, width: float, low: float, high: float, style: str) -> Markup:
    return tag(
        "rect", x=x, y=high, width=max(width - _GAP, 0.6), height=max(low - high, 0.8), class_=style
    )


def columns(
    width: int,
    title: str,
    about: str,
    series: Sequence[Series],
    bins: Sequence[Bar],
    ticks: Sequence[scales.Tick],
) -> Markup:
    """Draw a histogram: a column for each bin, equally wide, its parts stacked, its edge below.

    Args:
        width: Width of the drawing.
        title: Its name.
        about: What it shows.
        series: What each part of a column is.
        bins: The columns; the name is the label of the lower edge.
        ticks: Of the vertical axis.
    """
    shapes, y = _frame(width, ticks)
    step = (width - _LEFT) / max(len(bins), 1)
    longest = max((len(one.name) for one in bins), default=1) * _LETTER + 6
    every = max(1, int(longest / step + 0.999))
    for n, one in enumerate(bins):
        x = _LEFT + n * step
        drawn: list[Markup] = [tag("title", one.title)]
        below = 0.0
        for kind, part in zip(series, one.parts, strict=True):
            if part > 0:
                drawn.append(_column(x + 1, step - 1, y(below), y(below + part), kind.style))
            below += part
        # What the pointer finds reaches over the whole height: thin columns are hard to hit.
        drawn.append(tag("rect", x=x, y=_TOP, width=step, height=_PLOT, class_="ghost"))
        shapes.append(tag("g", *drawn))
        if n % every == 0:
            anchor = "start" if n == 0 else "middle"
            shapes.append(_text(x, _TOP + _PLOT + 18, one.name, anchor))
    return picture(width, _TOP + _PLOT + _TICKS, title, about, *shapes)


class Moment(NamedTuple):
    """A stretch of time in `timeline`.

    Attributes:
        start: Its beginning.
        parts: One value for each series, stacked.
        line: The value of the line over them.
        title: What the pointer shows.
    """

    start: datetime
    parts: Sequence[float]
    line: float
    title: str


def timeline(
    width: int,
    title: str,
    about: str,
    series: Sequence[Series],
    moments: Sequence[Moment],
    step_s: float,
    ticks: Sequence[scales.Tick],
) -> Markup:
    """Draw stacked columns over time, and a line over them.

    Args:
        width: Width of the drawing.
        title: Its name.
        about: What it shows.
        series: What each part of a column is.
        moments: The stretches, in order of time; those without anything may be left out.
        step_s: Length of a stretch, seconds.
        ticks: Of the vertical axis.
    """
    shapes, y = _frame(width, ticks)
    low, high = moments[0].start, moments[-1].start + timedelta(seconds=step_s)
    seconds = max((high - low).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return _LEFT + (width - _LEFT) * (at - low).total_seconds() / seconds

    column = (width - _LEFT) * min(step_s / seconds, 1.0)
    path: list[str] = []
    after: datetime | None = None
    for one in moments:
        drawn: list[Markup] = [tag("title", one.title)]
        below = 0.0
        for kind, part in zip(series, one.parts, strict=True):
            if part > 0:
                drawn.append(_column(x(one.start), column, y(below), y(below + part), kind.style))
            below += part
        drawn.append(
            tag("rect", x=x(one.start), y=_TOP, width=column, height=_PLOT, class_="ghost")
        )
        shapes.append(tag("g", *drawn))
        if after is not None and one.start > after:  # nothing happened between the two
            path.append(f"V{y(0):.1f}H{x(one.start):.1f}")
        begin = "V" if path else f"M{x(one.start):.1f} "
        path.append(f"{begin}{y(one.line):.1f}H{x(one.start) + column:.1f}")
        after = one.start + timedelta(seconds=step_s)
    shapes.append(tag("path", d="".join(path), class_="over"))
    labels = scales.time_ticks(low, high, 9 if width >= WIDE else 3)
    for at, words in labels:
        if _LEFT <= x(at) <= width - 14:
            shapes.append(_text(x(at), _TOP + _PLOT + 18, words, "middle"))
    return picture(width, _TOP + _PLOT + _TICKS, title, about, *shapes)


def strip(width: int, title: str, about: str, tiles: Sequence[Tile]) -> Markup:
    """Draw tiles in rows, as text runs; a tile with a dot is pinned.

    Args:
        width: Width of the drawing.
        title: Its name.
        about: What it shows.
        tiles: The tiles, in order.
    """
    wanted = next((s for s in (38, 30, 24, 19) if len(tiles) <= 3 * (width // s)), 15)
    across = width // wanted
    shapes: list[Markup] = []
    for n, one in enumerate(tiles):
        x, y = n % across * wanted, n // across * wanted
        side = wanted - 3
        drawn = [
            tag("title", one.title),
            tag("rect", x=x + 1, y=y + 1, width=side, height=side, rx=3, class_=one.style),
        ]
        if one.is_pinned:
            middle = 1 + side / 2
            drawn.append(
                tag("circle", cx=x + middle, cy=y + middle, r=max(3, side / 7), class_="pin")
            )
        shapes.append(tag("g", *drawn))
    rows = max(1, -(-len(tiles) // across))
    return picture(width, rows * wanted, title, about, *shapes)
