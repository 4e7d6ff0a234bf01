"""Runs all fuzz targets: `python -m vespiary_testkit.fuzz_runs PART`, or `make fuzz`.

Parts: `random` runs each target so many times (decoders at random from what is kept, scanners of C
by libFuzzer); `grow` is guided by coverage for a time and keeps what it finds in `build/fuzz`;
`keep` adds of that what reaches more to the corpus that is committed, and drops what reaches
nothing of its own. A failure prints the input's file and how to repeat it. Must never: hide that a
part did not run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from vespiary_testkit.fuzz_target import CORPORA, FINDINGS, INPUT_BYTES_MAX, ROOT
from vespiary_testkit.seeds import seed_for

DECODERS: Final = ("stomp_decoder", "mqtt_decoder", "amqp_decoder")
GROWN: Final = ROOT / "build/fuzz/corpus"
_BINARIES: Final = ROOT / "native/fuzz/bin"
_WITHOUT_CLANG: Final = (
    "the scanners of C are not fuzzed: there is no clang with libFuzzer. `make clang` installs one"
)
_WITHOUT_ATHERIS: Final = "the decoders are not guided by coverage: atheris is not installed"


class Job(NamedTuple):
    """One process that fuzzes.

    Attributes:
        name: Of the target, which is the name of its corpus.
        command: What is run.
        repeat: What repeats a finding, with `FILE` for its input; empty: it says so itself.
    """

    name: str
    command: list[str]
    repeat: str = ""


def scanners() -> list[str]:
    """Return the names of the scanners that were built."""
    return sorted(path.name for path in _BINARIES.glob("*_scanner"))


def _scanner(name: str, folders: list[Path], options: list[str]) -> Job:
    words = ROOT / f"native/fuzz/{name.removesuffix('_scanner')}.dict"
    options = [
        *options, f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={FINDINGS}/{name}-",
        "-print_final_stats=1", *([f"-dict={words}"] if words.exists() else []),
    ]  # fmt: skip
    command = [str(_BINARIES / name), *options, *map(str, folders)]
    return Job(name, command, f"native/fuzz/bin/{name} FILE")


def _decoder(name: str, arguments: list[str]) -> Job:
    return Job(name, [sys.executable, f"tests/fuzz/test_{name}_fuzz.py", *arguments])


def _environment() -> dict[str, str]:
    """Return what the sanitizers are told: keep little of what was freed, it is a short life."""
    options = "quarantine_size_mb=1:allocator_release_to_os_interval_ms=-1:malloc_context_size=8"
    found = {"ASAN_OPTIONS": f"{options}:detect_stack_use_after_return=0", "PYTHONPATH": "tests"}
    shown = [f"llvm-symbolizer{version}" for version in ("", *(f"-{n}" for n in range(25, 13, -1)))]
    if symbolizer := next(filter(None, map(shutil.which, shown)), None):
        found["ASAN_SYMBOLIZER_PATH"] = symbolizer
    return os.environ | found


def run_job(job: Job) -> bool:
    """Run one job; print one line, or all about its finding; return whether it found none."""
    begun_s = time.monotonic()
    done = subprocess.run(
        job.command, cwd=ROOT, env=_environment(), text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    took = f"{time.monotonic() - begun_s:.0f} s"
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        said = next((line for line in reversed(lines) if "no finding" in line), "")
        if runs := re.search(r"number_of_executed_units: (\d+)", done.stdout):
            reached = re.findall(r"cov: (\d+)", done.stdout)[-1:] or ["0"]
            said = f"{job.name}: {runs[1]} inputs, {reached[0]} places reached: no finding"
        print(f"{said}, {took}", flush=True)
        return bool(said)
    print("\n".join(lines[-60:]))
    print(f"{job.name}: FAILED after {took}: {' '.join(job.command)}")
    if kept := re.search(r"Test unit written to (\S+)", done.stdout):
        repeat = job.repeat or f"PYTHONPATH=tests {sys.executable} {job.command[1]} --replay FILE"
        print(f"  to repeat it: {repeat.replace('FILE', kept[1])}")
    sys.stdout.flush()
    return False


def run_jobs(jobs: list[Job], processes: int) -> bool:
    """Run jobs, so many at a time, the first ones first; return whether none found anything."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(processes) as pool:
        return all([*pool.map(run_job, jobs)])


def run_random(inputs: int, processes: int, seed: int, names: list[str]) -> bool:
    """Run each target that often; decoders in shares, so that all processes have work."""
    print(f"fuzz: seed {seed}", flush=True)
    share = -(-inputs // processes)
    jobs = [
        _decoder(name, ["--random", str(share), str((seed + number) % 2**32)])
        for name in DECODERS
        if name in names
        for number in range(processes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(names.__contains__, scanners()):
            (found := Path(folder) / name).mkdir()
            options = [f"-runs={inputs}", f"-seed={seed % 2**32 or 1}"]
            jobs.append(_scanner(name, [found, CORPORA / name], options))
        return run_jobs(jobs, processes)


def grow(seconds: int, processes: int, seed: int, names: list[str]) -> bool:
    """Let coverage guide each target for so long; what it finds is added to `build/fuzz/corpus`."""
    print(f"fuzz: seed {seed}, {seconds} s for each target", flush=True)
    options = [f"-max_total_time={seconds}", f"-seed={seed % 2**32 or 1}"]
    jobs = []
    if find_spec("atheris"):
        for name in filter(names.__contains__, DECODERS):
            more = [f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={FINDINGS}/{name}-"]
            folders = [_grown(name), str(CORPORA / name)]
            jobs.append(_decoder(name, [*folders, *options, *more, "-print_final_stats=1"]))
    else:
        print(_WITHOUT_ATHERIS, flush=True)
    jobs += [
        _scanner(name, [Path(_grown(name)), CORPORA / name], options)
        for name in filter(names.__contains__, scanners())
    ]
    return run_jobs(jobs, processes)


def _grown(name: str) -> str:
    (GROWN / name).mkdir(parents=True, exist_ok=True)
    return str(GROWN / name)


def keep(names: list[str]) -> None:
    """Replace each committed corpus by the smallest one found that reaches as much."""
    from vespiary_testkit.fuzz_corpus import minimise_decoder, minimise_scanner

    for name in names:
        folders = [CORPORA / name, Path(_grown(name))]
        if name in DECODERS:
            kept = minimise_decoder(name, folders)
        else:
            kept = minimise_scanner(_BINARIES / name, folders, _environment())
        print(f"{name}: {len(kept)} inputs are kept, {sum(map(len, kept))} bytes", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["random", "grow", "keep"])
    parser.add_argument("names", nargs="*", help="targets; all, if none is named")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each target (random)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (grow)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seed", type=int, help="repeats all choices; else it is the run's (seeds.py)"
    )
    asked = parser.parse_args(arguments)
    there = [*DECODERS, *scanners()]
    names = asked.names or there
    if unknown := set(names) - set(there):
        print(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(there)}")
        return 2
    if not scanners():
        print(_WITHOUT_CLANG, flush=True)
    seed = asked.seed if asked.seed is not None else seed_for("fuzz")
    if asked.part == "keep":
        keep(names)
        return 0
    if asked.part == "random":
        return 0 if run_random(asked.inputs, asked.processes, seed, names) else 1
    return 0 if grow(asked.seconds, asked.processes, seed, names) else 1


if __name__ == "__main__":
    sys.exit(main())
