"""Tables of a report as a broker of some days would give them, for tests and for the picture."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from vespiary_pipeline.report.tables import (
    AGE_EDGES,
    SIZE_EDGES,
    Bin,
    Branch,
    DeadLetters,
    FileUse,
    HotSpot,
    Outcome,
    PagedAddress,
    Pin,
    QueueDepth,
    ReportTables,
    Run,
    Top,
    Totals,
    Traffic,
    TrafficRow,
    bin_edges,
)

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
