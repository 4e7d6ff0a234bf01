"""The three tiers of tests: `make test`, `.ci/run` and `make verify`.

Each tier is a list of parts, and every part runs whichever fails. A part that runs pytest reports
its tests; a failed test that depends on real processes is run once more, alone, and reported as
rerun. `verify` keeps `build/verify.json`, and resumes where an earlier run of the same commit
stopped. docs/internals/proofs.md says what each part proves.

Usage: `python -m vespiary_testkit.tiers TIER [--part NAME]... [--list]`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vespiary_testkit.run_report import TestResult, read_results
from vespiary_testkit.seeds import run_seed

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "build/verify.json"
HISTORY = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "vespiary/reruns.jsonl"
"""The reruns of recent runs on this machine, one run a line."""
HISTORY_RUNS = 20
FAILURES_MAX = 60
"""A part stops after this many failures: something is missing here, or everything is broken."""
RERUN_FILES_MAX = 5
"""If tests of more files than this fail, nothing is rerun: that is not chance. Files are counted,
not tests, because one failing fixture fails every test of its file."""
MAY_RERUN = ("tests/integration/", "tests/fault/", "tests/spark/", "tests/e2e/")
"""Tests of real processes, browsers, clients and clusters. A failure of any other is final: unit
tests, power cuts, state machines and mutants are deterministic, and a `kill -9` that loses a
message is a finding however rare it is."""
BUDGET_S = 8 * 60
"""What `make test` may take on `BUDGET_CORES` cores."""
BUDGET_CORES = 2
WORKERS = 3
"""pytest processes on two cores: integration tests spend a third of their time waiting."""
MANY_WORKERS = 4
"""The same for tests that spend half of their time waiting for timers and processes."""


class Part(NamedTuple):
    """One step of a tier.

    Attributes:
        name: One word.
        purpose: What it runs, for people.
        command: The command line; for a part that is pytest, pytest's arguments alone.
        environment: Variables that differ from those of the run.
        workers: Processes that pytest spreads its tests over; 0 for a command that is not pytest.
    """

    name: str
    purpose: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}
    workers: int = 0


class Outcome(NamedTuple):
    """How a part ended.

    Attributes:
        is_good: Nothing failed, or what failed passed when it ran alone.
        counts: Number of tests by outcome.
        seconds: How long it took.
        summed_s: Sum of its tests' durations; for another command, the same as `seconds`.
        reruns: Tests that failed and passed when they ran alone.
    """

    is_good: bool
    counts: Mapping[str, int]
    seconds: float
    summed_s: float
    reruns: tuple[str, ...]


# --- the tiers ------------------------------------------------------------------------------------

_PLAIN = "not spark and not jms and not e2e"
_QUICK = f"{_PLAIN} and not ci and not verify"
_REST = f"{_PLAIN} and ci and not verify"
_ON_TWIN = ("tests/unit/vespiary_broker", "tests/integration")
_ON_NIO = (
    "tests/unit/vespiary_broker/app",
    "tests/unit/vespiary_broker/cli",
    "tests/unit/vespiary_broker/store/volumes",
    "tests/integration",
)
"""The other unit tests open no ring (tests/unit/vespiary_broker/conftest.py)."""
_MORE = f"{_PLAIN} and not once"
_NIO = {"VESPIARY_RING": "threads"}
_TWIN = {"VESPIARY_NATIVE": "0"}
_SPREAD_FILES = ("--dist=loadfile", "--no-loadscope-reorder")
_ALL = tuple(
    f"tests/{name}" for name in ("unit", "integration", "crash", "fault", "fuzz", "repo", "chart")
)


def _pytest(
    name: str, purpose: str, marks: str, *arguments: str, workers: int = WORKERS, **changes: str
) -> Part:
    return Part(name, purpose, ("-m", marks, *arguments), changes, workers)


def _make(name: str, purpose: str, *arguments: str) -> Part:
    return Part(name, purpose, ("make", "--no-print-directory", "-s", *arguments))


_C = _make("c", "the C code under sanitizers", "-j2", "native-test")
_CHECK = _make(
    "check", "format, lint, types, layers, generated files, C warnings", "--keep-going", "check"
)


def _fuzz(inputs: int) -> Part:
    return _make(
        "fuzz", "malformed input for each decoder and scanner", "fuzz", f"FUZZ_INPUTS={inputs}"
    )


def _e2e(tier: str, marks: str) -> list[Part]:
    """Return the e2e tests; the second part judges what the first has recorded."""
    record = {"VESPIARY_E2E_RECORD": str(ROOT / f"build/e2e-record-{tier}.json")}
    beside, alone = f"{marks} and not alone", f"{marks} and alone"
    return [
        _pytest("e2e", "Kubernetes", beside, "tests/e2e", *_SPREAD_FILES, **record),
        _pytest("e2e-alone", "the same", alone, "tests/e2e", workers=1, **record),
    ]


def _engine_files() -> list[str]:
    """Return the files with `engine` tests: collecting all others takes longer than these run."""
    paths = sorted((ROOT / "tests/integration").glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if "mark.engine" in path.read_text()]


def _test() -> list[Part]:
    marks, files = f"{_QUICK} and engine", _engine_files()
    return [
        _C,
        _pytest("core", "unit, integration, crash and fault tests on AIO", _QUICK, *_ALL),
        _pytest("nio", "the `engine` tests on NIO", marks, *files, **_NIO),
        _pytest("twin", "the same on the Python core", marks, *files, **_TWIN),
    ]


def _ci() -> list[Part]:
    fifth = {"VESPIARY_MUTANTS": "5"}
    return [
        _CHECK,
        *_test(),
        _pytest("rest", "the other tests on AIO", _REST, *_ALL, workers=MANY_WORKERS),
        _pytest("mutants", "a fifth of the mutants", _PLAIN, "tests/mutants", workers=2, **fifth),
        _pytest("spark", "core of the pipeline", "spark and not verify", "tests/spark", workers=1),
        _pytest("jms", "Jakarta Messaging", "jms and not verify", "tests/integration", workers=1),
        _fuzz(100_000),
        *_e2e("ci", "e2e and not verify"),
    ]


def _verify() -> list[Part]:
    late = {"VESPIARY_LATE": os.environ.get("VESPIARY_LATE", "0.4")}
    late["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests/late"), str(ROOT / "tests")])
    many = {"VESPIARY_IMAGES": "1000000", "VESPIARY_CRASH_CYCLES": "100", "VESPIARY_FLIPS": "all"}
    many |= {"VESPIARY_MACHINE_EXAMPLES": "120", "VESPIARY_ENGINE_EXAMPLES": "200"}
    many |= {"VESPIARY_ROUTING_WORLDS": "600"}
    cases = {"VESPIARY_FUZZ_CASES": "80"}
    return [
        _C,
        _CHECK,
        _pytest("unit", "unit tests", _PLAIN, "tests/unit", "tests/repo", "tests/chart"),
        _pytest("integration", "stock clients and brokers on AIO", _PLAIN, "tests/integration"),
        _pytest("fault", "faults, fuzz replay", _PLAIN, "tests/fault", "tests/fuzz", **cases),
        _pytest("crash", "kills, a million power cuts", _PLAIN, "tests/crash", **many),
        _pytest("mutants", "every mutant", _PLAIN, "tests/mutants", workers=2),
        _pytest("nio", "broker tests on NIO", _MORE, *_ON_NIO, **_NIO),
        _pytest("twin", "broker tests on the Python core", _MORE, *_ON_TWIN, **_TWIN),
        _pytest("spark", "the pipeline on Spark", "spark", "tests/spark", workers=1),
        _pytest("jms", "Qpid JMS, both APIs", "jms", "tests/integration", workers=1),
        *_e2e("verify", "e2e"),
        _pytest("late", "broker tests with random delays, on AIO", _PLAIN, *_ON_TWIN, **late),
        _pytest("late-nio", "the same on NIO", _MORE, *_ON_NIO, **_NIO, **late),
        _pytest("late-twin", "the same on the Python core", _MORE, *_ON_TWIN, **_TWIN, **late),
        _fuzz(1_000_000),
    ]


def parts_of(tier: str) -> list[Part]:
    """Return the parts of a tier in their order.

    Args:
        tier: `test`, `ci` or `verify`.
    """
    return {"test": _test, "ci": _ci, "verify": _verify}[tier]()


# --- running a part -------------------------------------------------------------------------------


def _command(part: Part, tests: Sequence[str] = ()) -> list[str]:
    if not part.workers:
        return list(part.command)
    spread = ["-n", str(part.workers), "--dist", "worksteal"] if part.workers > 1 else []
    if tests:
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *tests]
    shown = ["-q", "--durations=15", "--durations-min=2", f"--maxfail={FAILURES_MAX}"]
    return [sys.executable, "-m", "pytest", *shown, *spread, *part.command]


def _run(part: Part, report: Path, tests: Sequence[str] = ()) -> int:
    environment = os.environ | dict(part.environment) | {"VESPIARY_RUN_REPORT": str(report)}
    environment.pop("MAKEFLAGS", None)  # of the make that runs the tier
    # Rewriting the assertions of all modules takes each process half a minute, unless it is kept.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if tests and part.workers > 1:
        environment.pop("VESPIARY_E2E_RECORD", None)  # it stays that of the whole part
    return subprocess.run(_command(part, tests), cwd=ROOT, env=environment, check=False).returncode


def _new_report(name: str) -> Path:
    """Return the path of a run's report; an old one is removed."""
    report = ROOT / f"build/tests-{name}.json"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    return report


def run_part(part: Part) -> Outcome:
    """Run a part; run what failed once more, alone, where chance may be the reason."""
    begun_s = time.monotonic()
    reruns: tuple[str, ...] = ()
    report = _new_report(part.name)
    is_good = _run(part, report) == 0
    results = read_results(report)
    failed = failures(results)
    if not is_good and may_rerun(failed):
        print(f"running again, alone: {', '.join(failed)}", flush=True)
        second_report = _new_report(f"{part.name}-again")
        is_good = _run(part, second_report, failed) == 0
        second = read_results(second_report)
        # A test that was skipped has not passed.
        is_good &= all(test in second and second[test].outcome == "passed" for test in failed)
        reruns = tuple(failed) if is_good else ()
    seconds = time.monotonic() - begun_s
    summed_s = sum(result.seconds for result in results.values()) if part.workers else seconds
    counts = Counter(result.outcome for result in results.values())
    counts["passed"] += len(reruns)
    counts["failed"] -= len(reruns)
    return Outcome(is_good, dict(counts), seconds, summed_s, reruns)


def failures(results: Mapping[str, TestResult]) -> list[str]:
    """Return the tests that failed."""
    return [test for test, result in results.items() if result.outcome == "failed"]


def may_rerun(failed: list[str]) -> bool:
    """Return whether all of these may have failed by chance."""
    if not failed or len(failed) >= FAILURES_MAX:  # the part may have ended before all tests ran
        return False
    files = {test.partition("::")[0] for test in failed}
    is_chance = all(test.startswith(MAY_RERUN) and "::" in test for test in failed)
    return is_chance and len(files) <= RERUN_FILES_MAX


# --- what is recorded -----------------------------------------------------------------------------


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def start_record() -> dict[str, Any]:
    """Return the record of `verify`: that of an earlier run of this commit, or a new one.

    A seed that is asked for and is not the record's begins a new one.
    """
    tree = {"commit": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain"))}
    asked = os.environ.get("VESPIARY_SEED")
    if RECORD.exists() and not tree["changed"]:
        record: dict[str, Any] = json.loads(RECORD.read_text())
        is_same = record["commit"] == tree["commit"] and not record["changed"]
        if is_same and asked in (None, "", str(record["seed"])):
            return record
    seed = int(asked or time.time_ns())
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    return {**tree, "begun": now, "seed": seed, "parts": {}}


def add_to_record(record: dict[str, Any], part: Part, outcome: Outcome) -> None:
    """Add a part to the record of `verify` on the disk, and write it in one step.

    Another `verify` of the same commit may have added parts meanwhile; they are kept.
    """
    RECORD.parent.mkdir(exist_ok=True)
    stored = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if (stored.get("commit"), stored.get("seed")) == (record["commit"], record["seed"]):
        record["parts"] = stored["parts"] | record["parts"]
    record["parts"][part.name] = outcome._asdict()
    new = RECORD.with_suffix(".new")
    new.write_text(json.dumps(record, indent=2) + "\n")
    new.replace(RECORD)


def often_rerun(reruns: Iterable[str], history: Path) -> list[str]:
    """Add a run to the history; return what was rerun twice in the last twenty runs.

    Args:
        reruns: Tests that this run has run again.
        history: The file.
    """
    runs = (
        [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    )
    runs = [*runs, sorted(reruns)][-HISTORY_RUNS:]
    history.parent.mkdir(parents=True, exist_ok=True)
    history.write_text("".join(json.dumps(run) + "\n" for run in runs))
    counts = Counter(test for run in runs for test in set(run))
    return [test for test, count in counts.items() if count > 1]


def implied_s(parts: Iterable[tuple[Part, Outcome]]) -> float:
    """Return how long the parts take, collection aside: the durations of tests by workers."""
    return sum(outcome.summed_s / max(part.workers, 1) for part, outcome in parts)


# --- the command ----------------------------------------------------------------------------------


def _summary(part: Part, outcome: Outcome) -> str:
    counts = ", ".join(f"{number} {name}" for name, number in sorted(outcome.counts.items()))
    again = "".join(f"\n    passed only when it ran alone: {test}" for test in outcome.reruns)
    verdict = "ok" if outcome.is_good else "FAILED"
    return f"{part.name:12} {verdict:7} {outcome.seconds:6.0f} s  {counts}{again}"


def run_tier(tier: str, parts: list[Part], *, again: bool = False) -> int:
    """Run parts of a tier; return the exit code.

    Args:
        tier: The tier.
        parts: Those of its parts that are wanted.
        again: Also run parts of `verify` that have passed on this commit.
    """
    record = start_record() if tier == "verify" else None
    seed = record["seed"] if record is not None else run_seed()
    os.environ |= {"VESPIARY_SEED": str(seed), "VESPIARY_TIER": tier}
    print(f"{tier}: {len(parts)} parts, seed {seed} (VESPIARY_SEED={seed} repeats it)", flush=True)
    ended: list[tuple[Part, Outcome]] = []
    reruns: list[str] = []  # of this run: those of parts that have passed before are in the history
    for number, part in enumerate(parts, 1):
        known = record["parts"].get(part.name) if record is not None else None
        if known and known["is_good"] and not again:
            print(f"== {number}/{len(parts)} {part.name}: has passed on this commit", flush=True)
            ended.append((part, Outcome(**known)))
            continue
        print(f"== {number}/{len(parts)} {part.name}: {part.purpose}", flush=True)
        outcome = run_part(part)
        ended.append((part, outcome))
        reruns += outcome.reruns
        print(f"== {_summary(part, outcome)}", flush=True)
        if record is not None:
            add_to_record(record, part, outcome)
    return _conclude(tier, ended, reruns)


def _conclude(tier: str, ended: list[tuple[Part, Outcome]], reruns: list[str]) -> int:
    """Print what happened, and what to do about it; return the exit code."""
    bad = [part.name for part, outcome in ended if not outcome.is_good]
    print("\n".join(["", *(_summary(part, outcome) for part, outcome in ended)]))
    for test in often_rerun(reruns, HISTORY):
        print(f"rerun twice in {HISTORY_RUNS} runs, add it to tests/quarantine.toml: {test}")
    if tier == "test" and len(ended) == len(parts_of("test")):
        needed_s = implied_s(ended)
        print(f"the tests take {needed_s:.0f} s on {BUDGET_CORES} cores; the limit is {BUDGET_S} s")
        if needed_s > BUDGET_S:
            bad.append("budget")
            print("make test exceeds its limit: mark the slowest tests `ci`, one kept per feature")
    counts = sum((Counter(outcome.counts) for _, outcome in ended), Counter[str]())
    if bad:
        print(f"{tier}: failed: {' '.join(bad)}", file=sys.stderr)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if bad else 0


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["test", "ci", "verify"])
    parser.add_argument("--part", action="append", help="run this part alone; repeatable")
    parser.add_argument("--list", action="store_true", help="print the parts")
    asked = parser.parse_args(arguments)
    parts = parts_of(asked.tier)
    names = [part.name for part in parts]
    if unknown := set(asked.part or ()) - set(names):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names)}")
    if asked.list:
        print("\n".join(f"{part.name:12} {part.purpose}" for part in parts))
        return 0
    try:
        wanted = [part for part in parts if not asked.part or part.name in asked.part]
        return run_tier(asked.tier, wanted, again=bool(asked.part))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
