"""The C core against its twin: the same calls must give the same results and the same bytes.

A driver makes random calls to both cores at once, keeps the files that they write, crashes, and
restores both from what was written. A failure names its seed; `VESPIARY_FUZZ_SEEDS=17` or
`=1-5000` runs others than the usual ones.
"""

from __future__ import annotations

import os

import pytest

from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

from vespiary_testkit.core_driver import Driver

OPERATIONS = 500


def seeds() -> range:
    asked = os.environ.get("VESPIARY_FUZZ_SEEDS", "1-40")
    first, _, last = asked.partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_cores_agree(seed: int) -> None:
    driver = Driver(seed)
    try:
        driver.start()
        for number in range(OPERATIONS):
            driver.operate()
            if number % 170 == 169:
                driver.restart(is_clean=driver.random.random() < 0.6)
    except Exception as error:
        error.add_note(f"seed {seed}: run it again with VESPIARY_FUZZ_SEEDS={seed}")
        raise
