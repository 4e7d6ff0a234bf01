"""The page: well-formed, escaped, bounded, readable, and nothing in it loads anything."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import math
import random
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vespiary_pipeline.report import ReportTables, html_page, text_report
from vespiary_pipeline.report import findings as finder
from vespiary_pipeline.report.scales import count_ticks, size_ticks, time_ticks
from vespiary_pipeline.report.style import DARK, LIGHT, SERIES
from vespiary_pipeline.report.tables import (
    AGE_EDGES,
    SIZE_EDGES,
    Bin,
    Branch,
    Damage,
    DeadLetters,
    FileUse,
    HotSpot,
    Outcome,
    PagedAddress,
    Pin,
    QueueDepth,
    Run,
    Top,
    Totals,
    Traffic,
    TrafficRow,
    bin_edges,
)

# --- tables of a report ---------------------------------------------------------------------------

# Tables of a report as a broker of some days would give them, for tests and for the picture.

NOW = datetime(2026, 11, 23, 16, 40, tzinfo=UTC)
MIB = 1024 * 1024


def ago(**length: float) -> datetime:
    """Return a time before `NOW`."""
    return NOW - timedelta(**length)


def _files(chance: random.Random) -> Top[FileUse]:
    rows = []
    for n in range(1, 29):
        used = 10 * MIB if n < 28 else 4 * MIB
        pins: tuple[Pin, ...] = ()
        if n in (3, 4, 5):
            live = 2048
            pins = (
                Pin(queue="audit", messages=int(n == 3), sequence=118_204, oldest=ago(days=4))
                if n == 3
                else Pin(why="acknowledgements", queue="audit"),
            )
        else:
            live = int(used * min(0.97, max(0.08, (n / 30) ** 1.4 + chance.uniform(-0.12, 0.12))))
            pins = (
                Pin(
                    queue=chance.choice(["orders", "invoices", "mail.out"]),
                    messages=live // 1800,
                    sequence=90_000 + 800 * n,
                    oldest=ago(hours=60 - 2 * n),
                ),
            )
        dead = used - live
        rows.append(
            FileUse(
                name=f"activemq-data-{n}.hq",
                file_id=n,
                size_bytes=10 * MIB,
                used_bytes=used,
                live_bytes=live,
                dead={
                    "acknowledged": int(dead * 0.71),
                    "rolled back": int(dead * 0.04),
                    "moved": int(dead * 0.08) if n < 9 else 0,
                    "bookkeeping": int(dead * 0.11),
                    "padding": int(dead * 0.06),
                },
                pins=Top(pins),
            )
        )
    rows += [
        FileUse(name=f"activemq-data-{n}.hq", file_id=n, state="ahead", size_bytes=10 * MIB)
        for n in (29, 30)
    ]
    rows += [FileUse(name="activemq-data-31.hq", state="free", size_bytes=10 * MIB)]
    return Top(tuple(rows))


def _traffic(chance: random.Random) -> Traffic:
    rows = []
    addresses = (("orders", 900), ("invoices", 380), ("mail.out", 250), ("audit", 120), (None, 90))
    for hour in range(56):
        start = datetime(2026, 11, 21, 9, tzinfo=UTC) + timedelta(hours=hour)
        day = 0.25 + 0.75 * max(0.0, math.sin((start.hour - 6) / 24 * 2 * math.pi))
        for address, most in addresses:
            adds = int(most * day * chance.uniform(0.75, 1.25))
            late = 0.35 if address == "invoices" and hour > 44 else 0.97
            acks = int(adds * chance.uniform(late - 0.05, late + 0.03))
            rows.append(
                TrafficRow(
                    start=start,
                    address=address,
                    adds=adds,
                    acks=acks,
                    bytes_in=adds * 1800,
                    bytes_out=acks * 1800,
                )
            )
    return Traffic(width_s=3600, rows=tuple(rows), more_addresses=14)


def _depth() -> Top[QueueDepth]:
    return Top(
        (
            QueueDepth(
                queue="invoices",
                queue_id=2,
                address="invoices",
                messages=6_120,
                live_bytes=52 * MIB,
                paged=2_400,
                oldest=ago(hours=11),
            ),
            QueueDepth(
                queue="orders",
                queue_id=1,
                address="orders",
                messages=3_902,
                live_bytes=21 * MIB,
                prepared=46,
                oldest=ago(hours=58),
            ),
            QueueDepth(
                queue="mail.out",
                queue_id=3,
                address="mail.out",
                messages=1_744,
                live_bytes=18 * MIB,
                oldest=ago(hours=5),
            ),
            QueueDepth(
                queue="DLQ",
                queue_id=9,
                address="DLQ",
                messages=312,
                live_bytes=4 * MIB,
                oldest=ago(days=3),
            ),
            QueueDepth(
                queue="audit",
                queue_id=4,
                address="audit",
                messages=1,
                live_bytes=2048,
                oldest=ago(days=4, hours=2),
            ),
        ),
        more=11,
        rest=941,
    )


def _dead_letters() -> Top[DeadLetters]:
    return Top(
        (
            DeadLetters(
                reason="deliveries",
                origin="invoices",
                address="DLQ",
                messages=198,
                oldest=ago(days=3),
            ),
            DeadLetters(reason="expired", origin="mail.out", address="DLQ", messages=71),
            DeadLetters(reason="deliveries", origin="orders", address="DLQ", messages=28),
            DeadLetters(reason="expired", origin="orders", address="DLQ", messages=15),
        )
    )


def _hot_spots() -> Top[HotSpot]:
    return Top(
        tuple(
            HotSpot(
                queue="invoices",
                sequence=104_381 + 17 * n,
                deliveries=9 - n,
                arrival=ago(hours=11 - n),
                body_bytes=18_400 - 900 * n,
            )
            for n in range(6)
        ),
        more=23,
    )


def _prepared() -> Top[Branch]:
    return Top(
        (
            Branch(
                transaction=70_112,
                branch="1096044365:6f72646572732d31:62312d31",
                prepared_at=ago(days=2, hours=3),
                members=40,
            ),
            Branch(
                transaction=71_900,
                branch="1096044365:6f72646572732d32:62312d31",
                prepared_at=ago(minutes=3),
                members=6,
            ),
        )
    )


def realistic() -> ReportTables:
    """Return the tables of a broker with a few troubles; the same at each call."""
    chance = random.Random(7)  # the picture in the docs is made of these
    sizes = (0, 40, 900, 5200, 18_400, 9_100, 1_300, 240, 31, 6)
    ages = (0, 12, 140, 880, 2_100, 1_900, 2_700, 3_400, 1_240, 1, 0, 0)
    return ReportTables(
        run=Run(
            path="/var/lib/vespiary/data",
            made_at=NOW,
            seconds=8.4,
            read_bytes=284 * MIB,
            journal_end="activemq-data-28.hq:4194304, block 71 204",
            end_reason="a broker runs on it and nothing above is known to be durable",
            torn_bytes=8192,
            versions={"vespiary": "0.1.0", "Spark": "4.3.0", "journal format": "1"},
        ),
        totals=Totals(
            live_messages=12_373,
            live_places=13_020,
            live_bytes=96 * MIB,
            oldest_arrival=ago(days=4, hours=2),
            records=214_880,
        ),
        files=_files(chance),
        traffic=_traffic(chance),
        sizes=tuple(
            Bin(low=low, high=high, live=int(n * 0.35), dead=int(n * 0.65))
            for (low, high), n in zip(bin_edges(SIZE_EDGES), sizes + (0,) * 5, strict=True)
        ),
        ages=tuple(
            Bin(low=low, high=high, live=n)
            for (low, high), n in zip(bin_edges(AGE_EDGES), ages, strict=True)
        ),
        depth=_depth(),
        dead_letters=_dead_letters(),
        hot_spots=_hot_spots(),
        outcomes=(
            Outcome(outcome="committed", transactions=8_214, members=41_070),
            Outcome(outcome="rolled_back", transactions=377, members=1_502),
            Outcome(outcome="prepared", transactions=2, members=46),
            Outcome(outcome="open", transactions=1, members=3),
        ),
        prepared=_prepared(),
        pages=Top(
            (
                PagedAddress(
                    address="invoices", pages=5, messages=2_900, page_bytes=44 * MIB, done=500
                ),
                PagedAddress(address="mail.out", pages=1, messages=40, page_bytes=3 * MIB),
            )
        ),
    )


# --- the tests ------------------------------------------------------------------------------------


EMPTY = ReportTables(run=Run(path="/data", made_at=NOW))
VOID = {"meta", "br"}
EVIL = "<script>alert(1)</script>&\"'\x1b[2J\u202e\x00\ud800😀 שלום"


class Page(HTMLParser):
    """Reads a page; refuses elements that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


GEOMETRY = frozenset(
    [
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "cx",
        "cy",
        "r",
        "rx",
        "ry",
        "dx",
        "dy",
        "width",
        "height",
        "d",
        "points",
        "viewbox",
        "transform",
    ]
)
"""Attributes that hold nothing but numbers and letters of paths; the parser gives lower case."""


def checked(tables: ReportTables) -> str:
    """Return the page of tables, after all that must hold of any page."""
    page = html_page(tables)
    page.encode()
    read = Page(page)
    names = {name for name, _ in read.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "use", "image"}
    ids = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in read.elements:
        assert "src" not in attrs
        assert "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        if "href" in attrs:
            assert str(attrs["href"]).removeprefix("#") in ids
    for _, attrs in read.elements:  # not in the others: a queue may be called Nan
        drawn = " ".join(str(attrs[name]) for name in attrs if name in GEOMETRY)
        assert not re.search("nan|inf|none", drawn, re.IGNORECASE)
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ET.fromstring(svg)
        if root.get("aria-hidden") != "true":
            assert [child.tag.rpartition("}")[2] for child in root[:2]] == ["title", "desc"]
            assert all(child.text for child in root[:2])
        for shape in root.iter():
            assert all(float(shape.get(key, "0")) >= 0 for key in ("width", "height", "x", "r"))
    text = text_report(tables)
    text.encode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    return page


def test_a_real_report_has_its_parts_its_pictures_and_the_numbers_behind_them() -> None:
    page = checked(realistic())
    read = Page(page)
    parts = [attrs["id"] for name, attrs in read.elements if name == "section"]
    assert parts == [
        "files",
        "depth",
        "traffic",
        "dead-letters",
        "redelivery",
        "transactions",
        "pages",
        "sizes",
        "ages",
        "run",
    ]
    for part in ("files", "depth", "traffic", "dead-letters", "pages", "sizes", "ages"):
        body = page.partition(f'id="{part}"')[2].partition("</section>")[0]
        assert 'role="img"' in body, part
        assert "<details>" in body, part
        assert "<table" in body, part


def test_nothing_is_loaded() -> None:
    page = checked(realistic())
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\"'\s<]*", page)) == {"http://www.w3.org/2000/svg"}
    css = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = next(a["content"] for n, a in Page(page).elements if n == "meta" and "http-equiv" in a)
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_an_empty_broker_gives_a_page_that_says_so() -> None:
    page = checked(EMPTY)
    assert "Nothing here needs attention." in page
    assert "There is no file." in page
    assert "No queue holds a message." in page
    assert "Nothing here needs attention." in text_report(EMPTY)


@pytest.mark.parametrize("name", [EVIL, "x" * 500, "<" * 500, "", "漢" * 300, "e\u0301" * 400])
def test_names_of_strangers_do_no_harm(name: str) -> None:
    start = NOW - timedelta(hours=1)
    pins = Top((Pin(queue=name, messages=1, sequence=1, oldest=start),))
    dead = {name: 5, "padding": 3}
    tables = dataclasses.replace(
        EMPTY,
        run=Run(
            path=name,
            made_at=NOW,
            journal_end=name,
            end_reason=name,
            versions={name: name},
            damage=Top((Damage(path=name, offset=7, what=name),)),
        ),
        files=Top((FileUse(name=name, used_bytes=1000, live_bytes=1, dead=dead, pins=pins),)),
        traffic=Traffic(rows=(TrafficRow(start=start, address=name, adds=5, bytes_in=9),)),
        depth=Top((QueueDepth(queue=name, address=name, messages=3),)),
        dead_letters=Top((DeadLetters(reason=name, origin=name, address=name, messages=1),)),
        hot_spots=Top((HotSpot(queue=name, sequence=1, deliveries=50),)),
    )
    page = checked(tables)
    assert "<script" not in page
    assert "\x1b" not in page


@pytest.mark.ci
def test_ten_thousand_files_and_five_thousand_addresses_give_a_bounded_page() -> None:
    start = NOW - timedelta(days=1)
    tables = dataclasses.replace(
        EMPTY,
        files=Top(
            tuple(
                FileUse(name=f"activemq-data-{n}.hq", file_id=n, used_bytes=100, live_bytes=n % 101)
                for n in range(10_000)
            )
        ),
        traffic=Traffic(
            rows=tuple(
                TrafficRow(start=start + timedelta(seconds=n), address=f"a{n % 5000}", adds=n)
                for n in range(20_000)
            ),
            width_s=1,
        ),
        depth=Top(tuple(QueueDepth(queue=f"q{n}", messages=5000 - n) for n in range(5000))),
    )
    page = checked(tables)
    assert len(page) < 1_000_000
    assert "Each tile stands for 42 files." in page
    assert "and 4\u202f985 queues more" in page
    assert "and 4\u202f900 more" in page
    assert "4\u202f995 other addresses" in page


def test_what_was_left_out_is_said_with_its_sum() -> None:
    top = Top((5, 4, 3, 2), more=10, rest=7).first(2, float)
    assert top == Top((5, 4), more=12, rest=12.0)
    assert top.count == 14
    page = checked(realistic())
    body = page.partition('id="redelivery"')[2].partition("</section>")[0]
    assert body.count("<tr>") - 1 == 6
    assert "and 23 more" in body


def test_files_kept_by_one_old_message_are_named_with_a_cure() -> None:
    (kept,) = [one for one in finder.findings(realistic()) if "nearly empty" in one.sentence]
    assert kept.sentence == (
        "3 of 28 files are nearly empty and kept by 1 message of queue audit, 4 days old"
    )
    assert kept.command == "vespiary journal compact /var/lib/vespiary/data"


def test_damage_comes_first_and_paths_are_quoted() -> None:
    damage = Top((Damage(path="f.hq", offset=4096, what="bad checksum"),), more=2)
    run = Run(path="/a b;rm", made_at=NOW, damage=damage)
    first = finder.findings(dataclasses.replace(realistic(), run=run))[0]
    assert first.level is finder.Level.BAD
    assert first.sentence.startswith("3 places of the journal are damaged: f.hq:4096: bad checksum")
    assert first.command == "vespiary journal verify '/a b;rm'"


def test_a_wrong_clock_is_told() -> None:
    bins = tuple(Bin(low=low, high=high, live=3) for low, high in bin_edges(AGE_EDGES))
    future = QueueDepth(queue="q", messages=1, oldest=NOW + timedelta(days=2))
    tables = dataclasses.replace(EMPTY, ages=bins, depth=Top((future,)))
    page = checked(tables)
    assert "3 messages came in after this report was made" in page
    assert "in the future" in page


@given(st.floats(min_value=0, max_value=1e19))
def test_ticks_begin_at_nothing_rise_evenly_and_reach_the_largest(high: float) -> None:
    for ticks in (count_ticks(high), size_ticks(high)):
        values = [tick.value for tick in ticks]
        assert values[0] == 0
        assert values[-1] >= max(high, 1) * (1 - 1e-6)
        assert 2 <= len(values) <= 7
        steps = [b - a for a, b in itertools.pairwise(values)]
        assert max(steps) - min(steps) <= 1e-6 * max(steps)
        assert len({tick.label for tick in ticks}) == len(ticks)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 10**10),
)
def test_times_on_an_axis_are_round_within_it_and_few(low: datetime, seconds: int) -> None:
    seconds = min(seconds, int((datetime(9000, 1, 1, tzinfo=UTC) - low).total_seconds()))
    high = low + timedelta(seconds=seconds)
    found = time_ticks(low, high)
    assert len(found) <= 7
    assert all(low <= at <= high and at.microsecond == 0 for at, _ in found)


NAMES = st.text(max_size=30)
COUNTS = st.integers(0, 2**63)
TIMES = st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))
FILES = st.builds(
    FileUse,
    name=NAMES,
    state=NAMES,
    used_bytes=COUNTS,
    live_bytes=COUNTS,
    dead=st.dictionaries(NAMES, COUNTS, max_size=8),
    pins=st.builds(
        Top,
        st.lists(
            st.builds(Pin, why=NAMES, queue=st.none() | NAMES, messages=COUNTS, oldest=TIMES),
            max_size=2,
        ).map(tuple),
    ),
)
ROWS = st.builds(
    TrafficRow,
    start=TIMES.map(lambda at: at or NOW),
    address=st.none() | NAMES,
    adds=COUNTS,
    acks=COUNTS,
    bytes_in=COUNTS,
    bytes_out=COUNTS,
)
QUEUES = st.builds(
    QueueDepth,
    queue=st.none() | NAMES,
    messages=COUNTS,
    paged=COUNTS,
    prepared=COUNTS,
    oldest=TIMES,
)
LETTERS = st.builds(DeadLetters, reason=NAMES, origin=NAMES, address=NAMES, messages=COUNTS)


@pytest.mark.ci
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=st.lists(FILES, max_size=6).map(tuple),
    rows=st.lists(ROWS, max_size=8).map(tuple),
    queues=st.lists(QUEUES, max_size=5).map(tuple),
    letters=st.lists(LETTERS, max_size=5).map(tuple),
    lives=st.lists(COUNTS, min_size=12, max_size=12),
)
def test_any_tables_give_a_good_page(
    files: tuple[FileUse, ...],
    rows: tuple[TrafficRow, ...],
    queues: tuple[QueueDepth, ...],
    letters: tuple[DeadLetters, ...],
    lives: list[int],
) -> None:
    bins = zip(bin_edges(AGE_EDGES), lives, strict=True)
    checked(
        dataclasses.replace(
            EMPTY,
            files=Top(files),
            traffic=Traffic(width_s=60, rows=rows),
            depth=Top(queues),
            dead_letters=Top(letters),
            ages=tuple(Bin(low=low, high=high, live=live) for (low, high), live in bins),
        )
    )


def _linear(colour: str) -> list[float]:
    shares = []
    for at in (1, 3, 5):
        value = int(colour[at : at + 2], 16) / 255
        shares.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return shares


def _luminance(colour: str) -> float:
    shares = _linear(colour)
    return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 counts it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_shapes_can_be_told_from_the_page(colours: dict[str, str]) -> None:
    for text in ("ink", "quiet", "bad", "warn", "note"):
        for ground in ("page", "shade"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for shape in (*SERIES, "l0", "l1", "l2", "l3", "l4"):
        assert contrast(colours[shape], colours["page"]) >= 3, shape


# Machado, Oliveira and Fernandes 2009: how colours are seen without a kind of cone.
SIGHTS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def _seen(colour: str, sight: str) -> tuple[float, float, float]:
    """Return a colour in CIELAB as it is seen."""
    given = _linear(colour)
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, given, strict=True))))
        for row in SIGHTS[sight]
    )
    scaled = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stay_apart_for_the_colour_blind(colours: dict[str, str], sight: str) -> None:
    for group in (SERIES, ("l0", "l1", "l2", "l3", "l4")):
        for one, other in itertools.combinations(group, 2):
            seen, against = _seen(colours[one], sight), _seen(colours[other], sight)
            apart = sum((a - b) ** 2 for a, b in zip(seen, against, strict=True)) ** 0.5
            assert apart >= 10, (one, other, apart)
