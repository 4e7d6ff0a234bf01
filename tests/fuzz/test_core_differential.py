"""The C core against its twin: the same calls must give the same results and the same bytes.

A driver makes random calls to both cores at once, keeps the files that they write, crashes, and
restores both from what was written. `VESPIARY_FUZZ_CASES` sets how many runs there are.
"""

from __future__ import annotations

import os

import pytest

from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

from vespiary_testkit.core_driver import Driver
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.ci

OPERATIONS = 500
CASES = int(os.environ.get("VESPIARY_FUZZ_CASES", "20"))


@pytest.mark.parametrize("case", range(CASES))
def test_cores_agree(case: int) -> None:
    driver = Driver(seed_for(f"cores {case}"))
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            driver.restart(is_clean=driver.random.random() < 0.6)
