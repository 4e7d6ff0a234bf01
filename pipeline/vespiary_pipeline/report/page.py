"""The page: one HTML file without a script, which loads nothing.

Owns: the order of things, the headline, the policy that forbids all loading. Called by the jobs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from vespiary_pipeline.report import measures, sections
from vespiary_pipeline.report.findings import Finding, Level, findings, live_ratio, used
from vespiary_pipeline.report.journal_section import files
from vespiary_pipeline.report.markup import Markup, join, named, tag
from vespiary_pipeline.report.sections import Section, table
from vespiary_pipeline.report.style import CSS
from vespiary_pipeline.report.tables import ReportTables
from vespiary_pipeline.report.traffic_section import traffic

_WORDS = {Level.BAD: "broken", Level.WARN: "look", Level.NOTE: "note"}


class Fact(NamedTuple):
    """A number of the headline: what, how much, and a word to it."""

    name: str
    value: str
    note: str


def html_page(tables: ReportTables) -> str:
    """Return the report as one HTML file.

    Args:
        tables: What to show.
    """
    found = findings(tables)
    parts = all_sections(tables)
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"Vespiary report: {measures.shorten(tables.run.path, 120)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    body = tag("body", _top(tables, found, parts), tag("main", *(_part(p) for p in parts)), _end())
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def all_sections(tables: ReportTables) -> list[Section]:
    """Return the parts of the report, in order."""
    return [
        files(tables),
        sections.depth(tables),
        traffic(tables),
        sections.dead_letters(tables),
        sections.redelivery(tables),
        sections.transactions(tables),
        sections.pages(tables),
        sections.sizes(tables),
        sections.ages(tables),
        run(tables),
    ]


def headline(tables: ReportTables) -> list[Fact]:
    """Return the numbers at the top."""
    totals, now = tables.totals, tables.run.made_at
    full = used(tables.files)
    ratio = live_ratio(tables.files)
    hold = sum(one.used_bytes for one in full)
    places = measures.plural(totals.live_places, "place") + " in queues"
    oldest = measures.instant(totals.oldest_arrival)
    letters = sum(row.messages for row in tables.dead_letters.rows) + tables.dead_letters.rest
    return [
        Fact("live messages", measures.count(totals.live_messages), places),
        Fact("their bytes", measures.size(totals.live_bytes), "large bodies and pages included"),
        Fact("oldest message", measures.age(totals.oldest_arrival, now), f"{oldest} UTC"),
        Fact("files in use", measures.count(len(full)), f"of {measures.count(tables.files.count)}"),
        Fact(
            "live in them",
            "-" if ratio is None else measures.share(ratio, 1),
            f"of {measures.size(hold)}",
        ),
        Fact("dead letters", measures.count(letters), "in queues now"),
        Fact("in doubt", measures.count(tables.prepared.count), "prepared transactions"),
        Fact("damaged places", measures.count(tables.run.damage.count), "in what was read"),
    ]


def run(tables: ReportTables) -> Section:
    """Return the facts of the run: what was read, up to where, by what."""
    given = tables.run
    end = measures.shorten(given.journal_end, 120) or "before its first block"
    why = f", since {measures.shorten(given.end_reason, 200)}" if given.end_reason else ""
    sentence = (
        f"{measures.size(given.read_bytes)} read in {measures.span(given.seconds)}; "
        f"the journal ends at {end}{why}."
    )
    facts = [
        ("path", named(given.path, width=500)),
        ("made at", f"{measures.instant(given.made_at)} UTC"),
        ("records", measures.count(tables.totals.records)),
        ("never confirmed after the end", measures.size(given.torn_bytes)),
        *((measures.shorten(k, 60), measures.shorten(v, 120)) for k, v in given.versions.items()),
    ]
    body = [table("facts of the run", ("what", "value"), facts)]
    if given.damage.rows:
        rows = [
            (
                named(one.path, width=200),
                "-" if one.offset is None else measures.count(one.offset),
                measures.shorten(one.what, 500),
            )
            for one in given.damage.rows
        ]
        body.append(tag("h3", "Damaged places"))
        heads = ("file", "offset#", "what")
        body.append(table("damaged places", heads, rows, given.damage.more))
    return Section("run", "What was read", sentence, join(*body))


def _part(part: Section) -> Markup:
    return tag(
        "section",
        tag("h2", part.heading, id=f"{part.id}-heading"),
        tag("p", part.sentence, class_="lead"),
        part.body,
        id=part.id,
        aria_labelledby=f"{part.id}-heading",
    )


def _top(tables: ReportTables, found: Sequence[Finding], parts: Sequence[Section]) -> Markup:
    facts = [
        tag("div", tag("dt", one.name), tag("dd", one.value, tag("small", one.note)))
        for one in headline(tables)
    ]
    return tag(
        "header",
        tag("h1", "Report on ", named(tables.run.path, width=200)),
        tag("p", f"Made {measures.instant(tables.run.made_at)} UTC", class_="quiet"),
        tag("dl", *facts),
        tag("h2", "What to do next"),
        _findings(found),
        tag("nav", *(tag("a", p.heading, href=f"#{p.id}") for p in parts), aria_label="Parts"),
    )


def _findings(found: Sequence[Finding]) -> Markup:
    if not found:
        return tag("p", "Nothing here needs attention.", class_="lead")
    lines = [
        tag(
            "li",
            tag(
                "p",
                tag("span", _WORDS[one.level], class_="level"),
                tag("a", one.sentence, href=f"#{one.section}"),
                ".",
            ),
            tag("p", one.cure, " " if one.command else "", tag("code", one.command))
            if one.command
            else tag("p", one.cure),
            class_=one.level.name.lower(),
        )
        for one in found
    ]
    return tag("ol", *lines, class_="findings")


def _end() -> Markup:
    return tag(
        "footer",
        "This file is whole: it loads nothing and runs nothing. Point at a shape for its numbers.",
    )
