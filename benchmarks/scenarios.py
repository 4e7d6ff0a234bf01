"""What is measured, and the floors that it is held against.

Owns: the loads by name and the table of floors. Must never: measure. Called by
`benchmarks.measurement` and `benchmarks.table`. The names a, b, b8, c, a1 are those under which the
prototype of the hot path was measured, so that figures stay comparable.
"""

import operator
from collections.abc import Callable

import msgspec

from benchmarks import engine
from benchmarks.generator import Load


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One load on a fresh broker with an empty store; `load` None only starts it and looks."""

    name: str
    title: str
    load: Load | None
    environment: dict[str, str] = {}
    needs_raw_write: bool = False


class Floor(msgspec.Struct, frozen=True):
    """A bound that the median of a metric has to keep."""

    scenario: str
    metric: str
    bound: float
    at_least: bool

    def is_kept(self, measured: float) -> bool:
        """Return whether a measured value keeps the bound."""
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(measured, self.bound)


# A load that only produces leaves its messages in the store: 1.5 M bound it to 1.6 GB of journal.
_PRODUCED = 1_500_000
_PIPELINE = Load(producers=8, consumers=8, queues=8, window=100)

SCENARIOS = (
    Scenario(name="start", title="start with an empty store, then idle", load=None),
    Scenario(
        name="a",
        title="1 producer, 1 in flight",
        load=Load(messages=_PRODUCED),
        needs_raw_write=True,
    ),
    Scenario(
        name="b", title="1 producer, 500 in flight", load=Load(window=500, messages=_PRODUCED)
    ),
    Scenario(
        name="b8",
        title="8 producers, 100 in flight each",
        load=Load(producers=8, window=100, queues=8, messages=_PRODUCED),
    ),
    Scenario(
        name="c",
        title="8 producers x 100, 8 consumers, 8 queues, acknowledged one by one",
        load=_PIPELINE,
    ),
    Scenario(
        name="a1",
        title="1 producer, 1 in flight, 1 consumer",
        load=Load(consumers=1),
        needs_raw_write=True,
    ),
    Scenario(name="selector", title="c with a selector", load=engine.SELECTOR),
    Scenario(name="priorities", title="c with priorities 0 to 9 at random", load=engine.PRIORITIES),
    Scenario(
        name="groups", title="1000 message groups in one queue, 8 consumers", load=engine.GROUPS
    ),
    Scenario(
        name="filters", title="c with filters on subscriptions to topics", load=engine.FILTERS
    ),
    Scenario(
        name="c-twins",
        title="c on the pure-Python twins (VESPIARY_NATIVE=0)",
        load=_PIPELINE,
        environment={"VESPIARY_NATIVE": "0"},
    ),
)

FLOORS = (
    Floor("start", "ready_s", 0.7, at_least=False),
    Floor("start", "idle_rss_mb", 70, at_least=False),
    Floor("a", "confirm_p50_per_raw_write", 2, at_least=False),
    Floor("b", "confirmed_per_s", 200_000, at_least=True),
    Floor("b8", "confirmed_per_s", 200_000, at_least=True),
    Floor("c", "delivered_per_s", 120_000, at_least=True),
    Floor("c", "cpu_us_per_message", 5, at_least=False),
    Floor("selector", "delivered_per_s", 80_000, at_least=True),
    Floor("priorities", "delivered_per_s", 80_000, at_least=True),
    Floor("groups", "delivered_per_s", 80_000, at_least=True),
    Floor("filters", "delivered_per_s", 80_000, at_least=True),
    Floor("c-twins", "delivered_per_s", 50_000, at_least=True),
)
