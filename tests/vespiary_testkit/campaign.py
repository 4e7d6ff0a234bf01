"""The long run of the proofs: `make campaign`, or `python -m vespiary_testkit.campaign NAME`.

Each part runs until its count or its time is reached, prints what it did, and for each failure one
sentence with the line that repeats it; the exit code is 1 if there was one. Parts use as many
processes as they are given, two if nothing is said. Bounded by the environment:
VESPIARY_CAMPAIGN_SEED, VESPIARY_CAMPAIGN_SECONDS (for each part), VESPIARY_CAMPAIGN_IMAGES,
VESPIARY_CAMPAIGN_CYCLES, VESPIARY_CAMPAIGN_EXAMPLES, VESPIARY_CAMPAIGN_SOAK_SECONDS,
VESPIARY_CAMPAIGN_FUZZ_SECONDS, and VESPIARY_CAMPAIGN_PROCESSES.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from vespiary_testkit.fuzz_runs import DECODERS, grow, scanners
from vespiary_testkit.mutant_catalogue import MUTANTS
from vespiary_testkit.power_cut_checks import SeedCheck, Tally, check_images

_ROOT = Path(__file__).resolve().parents[2]
_OVERDUE = -1


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


class Job(NamedTuple):
    """One run of pytest in a process of its own.

    Attributes:
        title: What it does.
        tests: Files or tests.
        variables: Environment that turns the counts up, and says the seed.
    """

    title: str
    tests: list[str]
    variables: dict[str, str]


def run_job(job: Job, seconds: float) -> bool:
    """Run tests with their counts turned up; print what they printed, which tells the seed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *job.tests]
    repeat = " ".join(f"{name}={value}" for name, value in job.variables.items())
    begun_s = time.monotonic()
    environment = os.environ | job.variables
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=output, stderr=output, text=True
        )
        try:
            code = run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            run.wait()
            code = _OVERDUE
        output.seek(0)
        print(f"== {job.title}: {repeat} {' '.join(job.tests)}\n{output.read()}", end="")
    verdict = {0: "good", _OVERDUE: f"not at its end after {seconds:.0f} s"}.get(code, "FAILED")
    print(f"== {job.title}: {verdict}, {time.monotonic() - begun_s:.0f} s", flush=True)
    return code == 0


def run_jobs(jobs: Iterable[Job], processes: int, seconds: float) -> bool:
    """Run jobs, so many at a time; return whether all were good."""
    with ThreadPoolExecutor(processes) as pool:
        return all([*pool.map(lambda job: run_job(job, seconds), jobs)])


def kills(seed: int, cycles: int) -> list[Job]:
    """Return the jobs of kill -9: at every named point, and at random moments."""
    points = "tests/crash/test_failpoints.py"
    jms = "tests/crash/test_jms_failpoints.py"
    moments = "tests/crash/test_kill.py"
    branches = "tests/crash/test_branch_kills.py"
    variables = {
        "VESPIARY_CRASH_CYCLES": str(cycles),
        "VESPIARY_CRASH_SEED": str(seed % 2**32),
        "VESPIARY_FAILPOINT_ROUNDS": str(max(cycles // 100, 1)),
    }
    return [
        Job("kill -9 at random moments", [moments, branches, "-k", "not compacting"], variables),
        Job("kill -9 at named points, a half", [points, "-k", "0 or 1"], variables),
        Job("kill -9 at named points, the rest", [points, jms, "-k", "not 0 and not 1"], variables),
        Job("kill -9 while files are compacted", [moments, "-k", "compacting"], variables),
    ]


def machine(seed: int, examples: int, processes: int) -> list[Job]:
    """Return the jobs of the state machine: the examples are shared, the seeds differ."""
    return [
        Job(
            "the state machine",
            ["tests/crash/test_journal_machine.py"],
            {
                "VESPIARY_MACHINE_EXAMPLES": str(-(-examples // processes)),
                "VESPIARY_MACHINE_STEPS": "50",
                "VESPIARY_MACHINE_SEED": str(seed + number),
            },
        )
        for number in range(processes)
    ]


def faults(processes: int) -> list[Job]:
    """Return the jobs of flipped bits and of seeded faults."""
    names = [mutant.name for mutant in MUTANTS]
    nodes = [f"tests/mutants/test_mutants.py::test_a_seeded_fault_is_noticed[{n}]" for n in names]
    return [
        *(
            Job("seeded faults", nodes[number::processes], {"VESPIARY_MUTANTS": "all"})
            for number in range(processes)
        ),
        Job("flipped bits", ["tests/crash/test_bit_flips.py"], {"VESPIARY_FLIPS": "all"}),
    ]


def soaks(seconds: int) -> list[Job]:
    """Return the job of lives in a container, each so many seconds."""
    variables = {"VESPIARY_SOAK_S": str(seconds)}
    return [Job("a limit of memory", ["tests/fault/test_memory_limit.py"], variables)]


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part", choices=["all", "cuts", "kills", "machine", "faults", "soak", "fuzz"]
    )
    parser.add_argument("--seed", type=int, help="repeat this one seed (cuts)")
    asked = parser.parse_args(arguments)
    if asked.part == "cuts" and asked.seed is not None:
        return 0 if cuts_of_seed(asked.seed) else 1
    seed = _number("SEED", 0) or random.SystemRandom().randrange(1, 1 << 40)
    seconds = float(_number("SECONDS", 3600))
    print(f"VESPIARY_CAMPAIGN_SEED={seed} repeats this campaign", flush=True)
    processes = _number("PROCESSES", 2)
    is_good = True
    if asked.part in ("all", "cuts"):
        is_good &= cuts(seed, _number("IMAGES", 1_000_000), seconds, processes)
    jobs = {
        "kills": kills(seed, _number("CYCLES", 1000)),
        "machine": machine(seed, _number("EXAMPLES", 2000), processes),
        "faults": faults(processes),
        "soak": soaks(_number("SOAK_SECONDS", 60)),
    }
    for part, its_jobs in jobs.items():
        if asked.part in ("all", part):
            is_good &= run_jobs(its_jobs, processes, seconds)
    if asked.part in ("all", "fuzz"):
        fuzz_s = _number("FUZZ_SECONDS", 600)
        is_good &= grow(fuzz_s, processes, seed, [*DECODERS, *scanners()])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
