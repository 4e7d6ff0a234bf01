"""What `benchmarks.protocols` measures: loads by name, each with the floors that are promised.

Owns: names, loads, floors. Must never: run anything. Called by `benchmarks.protocols.__main__`.
"""

from collections.abc import Sequence
from itertools import permutations

import msgspec

from benchmarks.generator import ProtocolLoad

PRODUCED = 1_500_000
"""A load that only produces leaves its messages in the store: this bounds it to 1.6 GB."""

IDLE = "idle"
"""Name of the row of connections that do nothing."""

TLS = ", TLS"
"""What the name of a row with TLS ends with; before it stands the row that it is compared with."""

_CPU_US = 4.0
_END_TO_END_PER_S = 100_000.0
_ACROSS_PER_S = 60_000.0
_WARMUP_S = 0.7
_SECONDS = 3.0
_TITLES = {"stomp": "STOMP", "mqtt": "MQTT", "amqp": "AMQP"}


class RowError(Exception):
    """No row has this name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        name: What it is called, in tables and on the command line.
        load: What is sent and received.
        per_s: Floor of what is delivered, or confirmed without consumers, in a second; or None.
        cpu_us: The most processor time of the broker for a message in microseconds; or None.
    """

    name: str
    load: ProtocolLoad
    per_s: float | None = None
    cpu_us: float | None = None

    @property
    def has_tls(self) -> bool:
        """Whether its clients speak TLS."""
        return self.name.endswith(TLS)


def _produce(protocol: str, producers: int, window: int) -> ProtocolLoad:
    return ProtocolLoad(
        producer_protocol=protocol,
        consumer_protocol=protocol,
        producers=producers,
        queues=producers,
        window=window,
        messages=PRODUCED,
        warmup=_WARMUP_S,
        seconds=_SECONDS,
    )


def _carry(producer: str, consumer: str) -> ProtocolLoad:
    return ProtocolLoad(
        producer_protocol=producer,
        consumer_protocol=consumer,
        producers=8,
        consumers=8,
        queues=8,
        window=100,
        warmup=_WARMUP_S,
        seconds=_SECONDS,
    )


def _all() -> dict[str, Row]:
    """Rows that are compared stand beside one another: a disk has its better and worse minutes."""
    rows = [
        Row(name="STOMP 1 x 200", load=_produce("stomp", 1, 200)),
        Row(name="MQTT 1 x 200", load=_produce("mqtt", 1, 200), per_s=200_000, cpu_us=_CPU_US),
        Row(name="MQTT 5, 1 x 200", load=_produce("mqtt5", 1, 200), per_s=200_000, cpu_us=_CPU_US),
        Row(name="AMQP 1 x 200", load=_produce("amqp", 1, 200), per_s=150_000, cpu_us=_CPU_US),
        Row(name="STOMP 10 x 100", load=_produce("stomp", 10, 100)),
        Row(name=f"STOMP 10 x 100{TLS}", load=_produce("stomp", 10, 100)),
        Row(name="MQTT 10 x 100", load=_produce("mqtt", 10, 100), per_s=200_000, cpu_us=_CPU_US),
        Row(name=f"MQTT 10 x 100{TLS}", load=_produce("mqtt", 10, 100)),
        Row(name="AMQP 10 x 100", load=_produce("amqp", 10, 100), cpu_us=_CPU_US),
        Row(name=f"AMQP 10 x 100{TLS}", load=_produce("amqp", 10, 100)),
    ]
    rows += [
        Row(name=f"{_TITLES[p]} 8 + 8", load=_carry(p, p), per_s=_END_TO_END_PER_S) for p in _TITLES
    ]
    rows += [
        Row(name=f"{_TITLES[p]} to {_TITLES[c]}", load=_carry(p, c), per_s=_ACROSS_PER_S)
        for p, c in permutations(_TITLES, 2)
    ]
    return {row.name: row for row in rows}


ROWS: dict[str, Row] = _all()


def choose(wanted: Sequence[str]) -> list[str]:
    """Return the names of rows in their order, `IDLE` among them.

    Args:
        wanted: Names, or parts of names, in any case; none means all. A row with TLS brings the one
            along that it is compared with.

    Raises:
        RowError: A name that is no part of any row's.
    """
    names = [*ROWS, IDLE]
    chosen: set[str] = set()
    for want in wanted:
        exact = [name for name in names if name.lower() == want.lower()]
        found = exact or [name for name in names if want.lower() in name.lower()]
        if not found:
            raise RowError(f"no row has '{want}' in its name; there are: {'; '.join(names)}")
        chosen.update(found)
    chosen.update([name.removesuffix(TLS) for name in chosen])
    return [name for name in names if name in chosen or not wanted]
