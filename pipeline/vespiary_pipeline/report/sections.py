"""The parts of the page: each a sentence, its pictures, and the numbers behind them.

Owns: what each part tells and how much of it is shown. Called by `page` and `text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vespiary_pipeline.report import charts, findings, measures, scales
from vespiary_pipeline.report.markup import Markup, join, named, tag
from vespiary_pipeline.report.style import SERIES
from vespiary_pipeline.report.tables import Bin, DeadLetters, PagedAddress, QueueDepth, ReportTables

BARS_MAX: Final = 15
"""Bars of a picture; what is left is said in a sentence."""

ROWS_MAX: Final = 100
"""Rows of a table."""

OUTCOMES: Final = {
    "committed": "s3",
    "rolled_back": "s5",
    "prepared": "s2",
    "open": "s4",
    "void": "s6",
}


class Section(NamedTuple):
    """One part of the page.

    Attributes:
        id: Its anchor.
        heading: What it is about.
        sentence: What it tells.
        body: Pictures and tables.
    """

    id: str
    heading: str
    sentence: str
    body: Markup


Cell = str | float | None


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], more: int = 0
) -> Markup:
    """Return a table; numbers stand right, and the rest is said below.

    Args:
        caption: What it holds.
        heads: Names of its columns; one that ends in `#` is numeric.
        rows: Its cells: markup, text, or None for nothing.
        more: Rows that are not shown.
    """
    styles = [("number" if head.endswith("#") else None) for head in heads]
    top = [
        tag("th", head.rstrip("#"), scope="col", class_=style)
        for head, style in zip(heads, styles, strict=True)
    ]
    lines = [
        tag("tr", *(tag("td", _cell(cell), class_=s) for cell, s in zip(row, styles, strict=True)))
        for row in rows[:ROWS_MAX]
    ]
    left = more + max(0, len(rows) - ROWS_MAX)
    return join(
        tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", *top)),
                tag("tbody", *lines),
                aria_label=caption,
            ),
            class_="scroll",
        ),
        tag("p", f"and {measures.count(left)} more", class_="quiet") if left else "",
    )


def _cell(cell: Cell) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else measures.count(cell)


def numbers(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], more: int = 0
) -> Markup:
    """Return the table behind a picture, folded."""
    return tag("details", tag("summary", f"Numbers: {caption}"), table(caption, heads, rows, more))


def _left_out(count: int, noun: str, rest: str) -> Markup:
    if not count:
        return Markup("")
    return tag(
        "p", f"and {measures.plural(count, *noun.split('/'))} more with {rest}", class_="quiet"
    )


def depth(tables: ReportTables) -> Section:
    """Return how many messages are in each queue."""
    top = tables.depth.first(BARS_MAX, lambda row: row.messages)
    now = tables.run.made_at
    total = sum(row.messages for row in top.rows) + top.rest
    heading = "Messages by queue"
    if not top.rows:
        return Section("depth", heading, "No queue holds a message.", Markup(""))
    first = top.rows[0]
    sentence = (
        f"{measures.plural(total, 'message')} in {measures.plural(top.count, 'queue')}; "
        f"{measures.share(first.messages, total)} of them in {_queue(first)}, the oldest "
        f"{measures.age(first.oldest, now)}."
    ).replace(", the oldest -.", ".")
    series = (
        charts.Series("ready in the journal", "s1"),
        charts.Series("in pages", "s5"),
        charts.Series("held by a prepared transaction", "s2"),
    )
    rows = [
        charts.Bar(_queue(q), _depth_parts(q), measures.count(q.messages), _depth_title(q))
        for q in top.rows
    ]
    shown: list[tuple[Cell, ...]] = [
        (
            named(_queue(q)),
            named(q.address),
            q.messages,
            measures.size(q.live_bytes),
            q.paged,
            q.prepared,
            measures.instant(q.oldest),
            measures.age(q.oldest, now),
        )
        for q in tables.depth.rows
    ]
    heads = ("queue", "address", "messages#", "bytes#", "paged#", "prepared#", "oldest", "age")
    return Section(
        "depth",
        heading,
        sentence,
        join(
            charts.legend(series),
            charts.both(lambda w: charts.bars(w, heading, sentence, series, rows)),
            _left_out(top.more, "queue", measures.plural(top.rest, "message")),
            numbers("queues", heads, shown, tables.depth.more),
        ),
    )


def _queue(row: QueueDepth) -> str:
    return f"queue {row.queue_id}" if row.queue is None else findings.name_of(row.queue)


def _depth_parts(row: QueueDepth) -> tuple[float, float, float]:
    prepared = min(max(row.prepared, 0), max(row.messages, 0))
    paged = min(max(row.paged, 0), max(row.messages, 0) - prepared)
    return max(row.messages, 0) - prepared - paged, paged, prepared


def _depth_title(row: QueueDepth) -> str:
    held = f"{measures.plural(row.messages, 'message')}, {measures.size(row.live_bytes)}"
    return f"{_queue(row)}: {held}"


def _histogram(
    heading: str,
    sentence: str,
    series: Sequence[charts.Series],
    bins: Sequence[Bin],
    edge: str,
) -> Markup:
    words = measures.size if edge == "size" else measures.short_span
    filled = [n for n, one in enumerate(bins) if one.live or one.dead]
    shown = bins[filled[0] : filled[-1] + 1]
    columns = []
    rows: list[tuple[Cell, ...]] = []
    for one in shown:
        low = "" if one.low is None else words(one.low)
        high = "" if one.high is None else words(one.high)
        reach = f"{low} to {high}" if low and high else f"{low} or more" if low else f"below {high}"
        parts = (one.live, one.dead)[: len(series)]
        said = ", ".join(
            f"{measures.count(part)} {kind.name}" for kind, part in zip(series, parts, strict=True)
        )
        columns.append(charts.Bar(low or f"< {high}", parts, "", f"{reach}: {said}"))
        rows.append((reach, *parts))
    ticks = scales.count_ticks(max(sum(column.parts) for column in columns))
    heads = (edge, *(f"{kind.name}#" for kind in series))
    return join(
        charts.legend(series) if len(series) > 1 else "",
        charts.both(lambda w: charts.columns(w, heading, sentence, series, columns, ticks)),
        numbers(f"messages by {edge}", heads, rows),
    )


def sizes(tables: ReportTables) -> Section:
    """Return how large the messages are."""
    heading = "Sizes of messages"
    live, dead = sum(one.live for one in tables.sizes), sum(one.dead for one in tables.sizes)
    if not live + dead:
        return Section("sizes", heading, "The files hold no message.", Markup(""))
    most = max(tables.sizes, key=lambda one: one.live + one.dead)
    low = "less than" if most.low is None else f"{measures.size(most.low)} to"
    reach = (
        f"{low} {measures.size(most.high)}"
        if most.high is not None
        else (f"{measures.size(most.low or 0)} and more")
    )
    sentence = (
        f"{measures.plural(live, 'live message')} and {measures.count(dead)} that are dead and "
        f"still in files; most have {reach}."
    )
    series = (charts.Series("live", "s1"), charts.Series("dead", "s6"))
    body = _histogram(heading, sentence, series, tables.sizes, "size")
    return Section("sizes", heading, sentence, body)


def ages(tables: ReportTables) -> Section:
    """Return how old the live messages are."""
    heading = "Ages of live messages"
    total = sum(one.live for one in tables.ages)
    if not total:
        return Section("ages", heading, "There is no live message.", Markup(""))
    day = 86400.0
    old = sum(one.live for one in tables.ages if one.low is not None and one.low >= day)
    sentence = (
        f"{measures.count(old)} of {measures.plural(total, 'live message')} "
        f"({measures.share(old, total)}) came in more than a day ago."
    )
    series = (charts.Series("live", "s1"),)
    return Section(
        "ages", heading, sentence, _histogram(heading, sentence, series, tables.ages, "age")
    )


def dead_letters(tables: ReportTables) -> Section:
    """Return dead letters by reason and by where they come from."""
    heading = "Dead letters"
    top = tables.dead_letters
    total = sum(row.messages for row in top.rows) + top.rest
    if not total:
        return Section("dead-letters", heading, "There are none.", Markup(""))
    now = tables.run.made_at
    reasons: dict[str, int] = {}
    for row in top.rows:
        reasons[row.reason] = reasons.get(row.reason, 0) + row.messages
    order = sorted(reasons, key=lambda reason: -reasons[reason])
    kinds = order[:5]
    series = [
        charts.Series(measures.shorten(reason, 40), SERIES[n]) for n, reason in enumerate(kinds)
    ]
    if len(order) > len(kinds):
        series.append(charts.Series("other reasons", SERIES[-1]))
    origins: dict[str, list[DeadLetters]] = {}
    for row in top.rows:
        origins.setdefault(row.origin, []).append(row)
    ranked = sorted(origins, key=lambda o: -sum(row.messages for row in origins[o]))
    rows = [
        _letters_bar(origin, origins[origin], kinds, len(series)) for origin in ranked[:BARS_MAX]
    ]
    sentence = (
        f"{measures.plural(total, 'dead letter')} from "
        f"{measures.plural(len(ranked), 'address', 'addresses')}"
        f"{' or more' if top.more else ''}; {measures.share(reasons[order[0]], total)} for "
        f"{measures.shorten(order[0], 40)}."
    )
    shown = [
        (
            named(r.reason),
            named(r.origin),
            named(r.address),
            r.messages,
            measures.age(r.oldest, now),
        )
        for r in top.rows
    ]
    left = sum(row.messages for origin in ranked[BARS_MAX:] for row in origins[origin])
    return Section(
        "dead-letters",
        heading,
        sentence,
        join(
            charts.legend(series),
            charts.both(lambda w: charts.bars(w, heading, sentence, series, rows)),
            _left_out(
                max(0, len(ranked) - BARS_MAX) + top.more,
                "address or reason/addresses or reasons",
                measures.plural(left + top.rest, "dead letter"),
            ),
            numbers(
                "dead letters",
                ("reason", "came from", "are in", "messages#", "oldest"),
                shown,
                top.more,
            ),
        ),
    )


def _letters_bar(
    origin: str, rows: Sequence[DeadLetters], kinds: Sequence[str], width: int
) -> charts.Bar:
    parts = [0.0] * width
    for row in rows:
        parts[kinds.index(row.reason) if row.reason in kinds else width - 1] += row.messages
    total = sum(parts)
    name = findings.name_of(origin) if origin else "(unknown)"
    return charts.Bar(name, parts, measures.count(total), f"{name}: {measures.count(total)}")


def redelivery(tables: ReportTables) -> Section:
    """Return the messages that were given out most often."""
    heading = "Messages that come back"
    spots = tables.hot_spots
    if not spots.rows:
        sentence = "No live message was given out more than once."
        return Section("redelivery", heading, sentence, Markup(""))
    worst = max(spots.rows, key=lambda spot: spot.deliveries)
    sentence = (
        f"{measures.plural(spots.count, 'live message was', 'live messages were')} given out more "
        f"than once, at most {measures.plural(worst.deliveries, 'time')}; at "
        "max-delivery-attempts (10 unless set) a message is a dead letter."
    )
    rows = [
        (
            named(spot.queue),
            spot.sequence,
            spot.deliveries,
            measures.size(spot.body_bytes),
            measures.instant(spot.arrival),
            measures.age(spot.arrival, tables.run.made_at),
        )
        for spot in spots.rows
    ]
    heads = ("queue", "number#", "deliveries#", "body#", "came in", "age")
    return Section(
        "redelivery",
        heading,
        sentence,
        table(
            "messages that come back", heads, rows[:BARS_MAX], spots.count - len(rows[:BARS_MAX])
        ),
    )


def transactions(tables: ReportTables) -> Section:
    """Return transactions by outcome, and those in doubt."""
    heading = "Transactions"
    total = sum(row.transactions for row in tables.outcomes)
    if not total and not tables.prepared.count:
        return Section("transactions", heading, "The files hold none.", Markup(""))
    now = tables.run.made_at
    good = sum(row.transactions for row in tables.outcomes if row.outcome == "committed")
    sentence = (
        f"{measures.plural(total, 'transaction')}, {measures.share(good, total)} committed; "
        f"{measures.count(tables.prepared.count)} in doubt."
    )
    body: list[Markup] = []
    if total:
        series = tuple(
            charts.Series(row.outcome, OUTCOMES.get(row.outcome, "s6")) for row in tables.outcomes
        )
        rows = [
            charts.Bar(
                row.outcome.replace("_", " "),
                [float(row.transactions) if n == k else 0.0 for k in range(len(series))],
                measures.count(row.transactions),
                f"{row.outcome}: {measures.plural(row.transactions, 'transaction')}",
            )
            for n, row in enumerate(tables.outcomes[:BARS_MAX])
        ]
        body.append(charts.both(lambda w: charts.bars(w, heading, sentence, series, rows)))
        shown = [(named(row.outcome), row.transactions, row.members) for row in tables.outcomes]
        body.append(numbers("outcomes", ("outcome", "transactions#", "members#"), shown))
    if tables.prepared.rows:
        waiting = [
            (
                str(branch.transaction),
                named(branch.branch or None),
                measures.instant(branch.prepared_at),
                measures.age(branch.prepared_at, now),
                branch.members,
            )
            for branch in tables.prepared.rows
        ]
        heads = ("transaction#", "branch", "prepared", "age", "members#")
        body.append(tag("h3", "In doubt"))
        body.append(
            table(
                "prepared transactions",
                heads,
                waiting[:BARS_MAX],
                tables.prepared.count - len(waiting[:BARS_MAX]),
            )
        )
    return Section("transactions", heading, sentence, join(*body))


def pages(tables: ReportTables) -> Section:
    """Return what is paged, by address."""
    heading = "Pages"
    top = tables.pages.first(BARS_MAX, lambda row: row.page_bytes)
    total = sum(row.page_bytes for row in top.rows) + top.rest
    if not top.rows:
        return Section("pages", heading, "No address pages.", Markup(""))
    sentence = (
        f"{measures.plural(top.count, 'address pages', 'addresses page')} {measures.size(total)}, "
        f"{measures.share(top.rows[0].page_bytes, total)} of it "
        f"{findings.name_of(top.rows[0].address)}."
    )
    series = (charts.Series("still to deliver", "s5"), charts.Series("acknowledged", "s6"))
    rows = [
        charts.Bar(
            findings.name_of(row.address), _page_parts(row), measures.size(row.page_bytes),
            f"{findings.name_of(row.address)}: {measures.plural(row.pages, 'page')}, "
            f"{measures.plural(row.messages, 'message')}, {measures.size(row.page_bytes)}",
        )
        for row in top.rows
    ]  # fmt: skip
    shown = [
        (named(r.address), r.pages, r.messages, r.done, measures.size(r.page_bytes))
        for r in tables.pages.rows
    ]
    heads = ("address", "pages#", "messages#", "acknowledged#", "bytes#")
    return Section(
        "pages",
        heading,
        sentence,
        join(
            charts.legend(series),
            charts.both(lambda w: charts.bars(w, heading, sentence, series, rows)),
            _left_out(top.more, "address/addresses", measures.size(top.rest)),
            numbers("pages by address", heads, shown, tables.pages.more),
        ),
    )


def _page_parts(row: PagedAddress) -> tuple[float, float]:
    done = row.page_bytes * min(1.0, row.done / row.messages) if row.messages > 0 else 0.0
    return row.page_bytes - done, done
