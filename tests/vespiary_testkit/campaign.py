"""The long run of the proofs: `make campaign`, or `python -m vespiary_testkit.campaign NAME`.

Each part runs until its count or its time is reached, prints what it did, and for each failure one
sentence with the line that repeats it; the exit code is 1 if there was one. Bounded by options or
by the environment: VESPIARY_CAMPAIGN_SEED, VESPIARY_CAMPAIGN_SECONDS (for each part),
VESPIARY_CAMPAIGN_IMAGES, VESPIARY_CAMPAIGN_CYCLES, VESPIARY_CAMPAIGN_STEPS, and
VESPIARY_CAMPAIGN_PROCESSES.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from vespiary_testkit.power_cut_checks import SeedCheck, Tally, check_images

_ROOT = Path(__file__).resolve().parents[2]


def _number(name: str, default: int) -> int:
    return int(os.environ.get(f"VESPIARY_CAMPAIGN_{name}", str(default)))


def _cuts_in_process(first: int, count: int, step: int, seconds: float) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        return check_images(Path(folder), first, count, step=step, seconds=seconds)


def cuts(seed: int, images: int, seconds: float, processes: int) -> bool:
    """Cut generated lives at every step until there are enough images."""
    with ProcessPoolExecutor(processes) as pool:
        share = -(-images // processes)
        running = [
            pool.submit(_cuts_in_process, seed + n, share, processes, seconds)
            for n in range(processes)
        ]
        tallies = [future.result() for future in running]
    total = Tally()
    for tally in tallies:
        total.images += tally.images
        total.openings += tally.openings
        total.inner_images += tally.inner_images
        total.further_lives += tally.further_lives
        total.seeds += tally.seeds
        total.seconds = max(total.seconds, tally.seconds)
        total.failures += tally.failures
    print(f"power cuts from seed {seed}: {total}", flush=True)
    for failure in total.failures:
        print(f"  {failure}", flush=True)
    return not total.failures


def cuts_of_seed(seed: int) -> bool:
    """Repeat all cuts of one seed."""
    tally = Tally()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        SeedCheck(Path(folder), seed, tally).run(1 << 60)
    tally.seconds = time.monotonic() - begin_s
    print(tally)
    for failure in tally.failures:
        print(f"  {failure}")
    return not tally.failures


def run_tests(title: str, tests: list[str], **variables: str) -> bool:
    """Run tests with their counts turned up; they print what they did themselves."""
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *tests]
    print(f"{title}: {' '.join(f'{k}={v}' for k, v in variables.items())}", flush=True)
    done = subprocess.run(command, cwd=_ROOT, env=os.environ | variables, check=False)
    return done.returncode == 0


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["all", "cuts", "kills", "machine", "faults"])
    parser.add_argument("--seed", type=int, help="repeat this one seed (cuts)")
    asked = parser.parse_args(arguments)
    if asked.part == "cuts" and asked.seed is not None:
        return 0 if cuts_of_seed(asked.seed) else 1
    seed = _number("SEED", 0) or random.SystemRandom().randrange(1, 1 << 40)
    seconds = float(_number("SECONDS", 3600))
    print(f"VESPIARY_CAMPAIGN_SEED={seed} repeats this campaign", flush=True)
    is_good = True
    if asked.part in ("all", "cuts"):
        is_good &= cuts(seed, _number("IMAGES", 1_000_000), seconds, _number("PROCESSES", 2))
    if asked.part in ("all", "kills"):
        cycles = _number("CYCLES", 1000)
        is_good &= run_tests(
            "kill -9 at named points and at random moments",
            ["tests/crash/test_failpoints.py", "tests/crash/test_kill.py"],
            VESPIARY_CRASH_CYCLES=str(cycles),
            VESPIARY_CRASH_SEED=str(seed % 2**32),
            VESPIARY_FAILPOINT_ROUNDS=str(max(cycles // 100, 1)),
        )
    if asked.part in ("all", "machine"):
        is_good &= run_tests(
            "the state machine",
            ["tests/crash/test_journal_machine.py"],
            VESPIARY_MACHINE_EXAMPLES=str(_number("STEPS", 5_000_000) // 100),
            VESPIARY_MACHINE_STEPS="100",
            VESPIARY_MACHINE_SEED=str(seed),
        )
    if asked.part in ("all", "faults"):
        is_good &= run_tests(
            "flipped bits and seeded faults",
            ["tests/crash/test_bit_flips.py", "tests/mutants"],
            VESPIARY_MUTANTS="all",
            VESPIARY_FLIPS="all",
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
