"""The long run finds its tests: a renamed test would end it after seconds, at night."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from vespiary_testkit.campaign import Job, faults, kills, machine, run_jobs, soaks
from vespiary_testkit.mutant_catalogue import MUTANTS
from vespiary_testkit.mutant_runner import ROOT

pytestmark = pytest.mark.crash


def collected(job: Job) -> set[str]:
    """Return the tests that a job would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *job.tests],
        cwd=ROOT,
        env=os.environ | job.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_the_jobs_of_kills_share_all_tests_and_none_is_empty() -> None:
    names = ("test_kill.py", "test_branch_kills.py", "test_failpoints.py", "test_jms_failpoints.py")
    files = [f"tests/crash/{name}" for name in names]
    with ThreadPoolExecutor() as pool:
        everything, *found = pool.map(collected, [Job("all", files, {}), *kills(1, 1000)])
    assert all(found)
    assert set().union(*found) == everything


def test_the_files_of_the_other_jobs_exist() -> None:
    for job in (*machine(1, 2000, 2), *faults(2), *soaks(60)):
        for test in job.tests:
            assert (ROOT / test.partition("::")[0]).is_file(), test


def test_no_seeded_fault_is_left_out_and_no_example() -> None:
    tests = [test for job in faults(3) for test in job.tests if "::" in test]
    assert len(tests) == len(set(tests)) == len(MUTANTS)
    shares = [int(job.variables["VESPIARY_MACHINE_EXAMPLES"]) for job in machine(1, 2000, 3)]
    assert sum(shares) >= 2000
    assert len({job.variables["VESPIARY_MACHINE_SEED"] for job in machine(1, 2000, 3)}) == 3


def test_a_job_that_fails_or_hangs_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    nothing = Job("nothing", ["tests/crash/test_kill.py", "-k", "no such test"], {})
    assert not run_jobs([nothing], 1, 300)
    assert "nothing: FAILED" in capfd.readouterr().out
    slow = Job("slow", ["tests/crash/test_kill.py"], {"VESPIARY_CRASH_CYCLES": "1"})
    assert not run_jobs([slow], 1, 0.01)
    assert "slow: not at its end" in capfd.readouterr().out
