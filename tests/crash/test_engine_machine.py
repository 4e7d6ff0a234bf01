"""The engine against a dictionary, over all kinds of queues, and a power cut at every block.

The machine is `vespiary_testkit.engine_machine` with `engine_machine_kinds`. It runs on both cores.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from vespiary_broker.engine.core import Core
from vespiary_native.choice import open_core
from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_testkit.engine_machine_kinds import KindsMachine

EXAMPLES = int(os.environ.get("VESPIARY_ENGINE_EXAMPLES", "100"))
STEPS = 30
SERIES_MAX = 4
"""A series of examples without one of the fates is followed by another."""
FATES = {
    "dead",
    "discarded",
    "expired",
    "given up by latest",
    "given up by ring",
    "given up by shown",
    "restarts",
    "retried",
    "shown again",
    "went by itself",
    "went with messages",
}

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("core", ["native", "twin"])
def test_any_order_of_acts_and_power_cuts(core: str) -> None:
    if core == "native" and not is_wanted():
        pytest.skip("the native part is switched off")

    def make_core() -> Core:
        # Small blocks: a transaction takes several.
        options = {"slabs_max": 16, "record_bytes_max": 490 * 1024, "block_bytes": 4096}
        return TwinCore(**options) if core == "twin" else open_core(**options)

    parts = {"make_core": staticmethod(make_core), "cuts": 0, "fates": Counter()}
    machine = type(f"{core.title()}Engine", (KindsMachine,), parts)
    chosen = settings(
        max_examples=EXAMPLES if core == "native" else max(EXAMPLES // 4, 1),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        # In CI what failed is told at once; making it small takes minutes.
        phases=[Phase.generate, *([] if os.environ.get("CI") else [Phase.shrink])],
    )
    for number in range(SERIES_MAX):
        # What a seed draws depends on the constants in all that is loaded, so on the other tests.
        run_state_machine_as_test(seed(number)(machine), settings=chosen)
        if core == "twin" or (+machine.fates).keys() >= FATES:
            break
    print(f"{core}: {machine.cuts} cuts, {dict(machine.fates)}")
    assert machine.cuts >= EXAMPLES
    if core == "native":
        assert (+machine.fates).keys() >= FATES, "what it is for did not happen"
