"""`make verify PART=late`: lateness is there where it is asked for, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.verify

FOLDER = Path(__file__).parents[1] / "late"
LOOK = """
import sys
assert "concurrent.futures.thread" not in sys.modules
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
slept, time.sleep = [], lambda seconds: slept.append(seconds)
async def main():
    loop = asyncio.get_running_loop()
    return [await loop.run_in_executor(None, int, number) for number in range(50)]
assert asyncio.run(main()) == list(range(50))
print(len(slept), sys.getswitchinterval())
"""


@pytest.mark.parametrize(("share", "late"), [(None, 0), ("0", 0), ("1", 100), ("0.5", None)])
def test_so_many_results_are_late(share: str | None, late: int | None) -> None:
    names = {key: value for key, value in os.environ.items() if key != "VESPIARY_LATE"}
    names |= {"PYTHONPATH": str(FOLDER)} | ({"VESPIARY_LATE": share} if share else {})
    shown = subprocess.run(
        [sys.executable, "-c", LOOK], env=names, check=True, capture_output=True, text=True
    )
    count, switch_s = shown.stdout.split()
    if late is None:
        assert 10 < int(count) < 90, "some, by chance"
    else:
        assert int(count) >= late
        assert late or int(count) == 0
    assert (float(switch_s) < 0.001) == bool(late is None or late)


LOOK_AT_READERS = """
import asyncio, os
from vespiary_broker.app import event_loop
async def main():
    loop, calls = asyncio.get_running_loop(), []
    ready = os.eventfd(1)
    loop.add_reader(ready, calls.append, 1)
    for _ in range(200):
        await asyncio.sleep(0)
    loop.remove_reader(ready)
    return len(calls)
print(event_loop.run(main()))
"""


@pytest.mark.parametrize(("share", "least", "most"), [("0", 190, 201), ("1", 50, 150)])
def test_readers_of_the_products_loop_are_late(share: str, least: int, most: int) -> None:
    """The descriptor is ready in each of 200 turns."""
    shown = subprocess.run(
        [sys.executable, "-c", LOOK_AT_READERS],
        env=os.environ | {"PYTHONPATH": str(FOLDER), "VESPIARY_LATE": share},
        check=True,
        capture_output=True,
        text=True,
    )
    assert least <= int(shown.stdout) <= most
