"""Splits a process's CPU time by where it was spent, with `perf`, when that is installed.

Owns: the perf process. Must never: fail a measurement; what can't be had is said in one sentence.
Called by `benchmarks.measurement`.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec

_ROW = re.compile(r"^\s*([0-9.]+)%\s+(\S.*?)\s*$")
# First match wins; the kind of a shared object follows from its file name.
_KINDS = (
    ("other", re.compile(r"^\[unknown\]")),
    ("kernel", re.compile(r"^\[")),  # kallsyms, modules, vdso
    ("C: vespiary_native", re.compile(r"_native.*\.so")),
    ("C: libc (memcpy)", re.compile(r"^(libc[.-]|ld-|libpthread|libcrypto|libssl)")),
    ("cffi", re.compile(r"_cffi_backend|libffi")),
    ("uvloop", re.compile(r"^loop\.|uvloop|libuv")),
    ("Python", re.compile(r"python|\.cpython-|\.so|perf-\d+\.map|anon")),
)


class Profile(msgspec.Struct, frozen=True):
    """Percent of the process's CPU samples by kind; empty with a `problem` when there are none."""

    percent: dict[str, float] = {}
    problem: str = ""


def classify(shared_object: str) -> str:
    """Return the kind of code that a shared object (perf's `dso`) holds."""
    for kind, pattern in _KINDS:
        if pattern.search(shared_object):
            return kind
    return "other"


def read_report(text: str) -> dict[str, float]:
    """Sum the rows of `perf report --sort dso` by kind, largest first."""
    percent: dict[str, float] = {}
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is not None:
            kind = classify(row[2])
            percent[kind] = round(percent.get(kind, 0.0) + float(row[1]), 2)
    return dict(sorted(percent.items(), key=lambda item: -item[1]))


class Recorder:
    """One `perf record` on one process; owned by the thread that made it."""

    def __init__(self, pid: int, output: Path) -> None:
        """Prepare to record.

        Args:
            pid: The process to watch, with all its threads.
            output: File for perf's data; it may grow by some MB a second.
        """
        self._pid = pid
        self._output = output
        self._perf = shutil.which("perf")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to sample, 999 times a second of CPU; nothing happens without perf."""
        if self._perf is None:
            return
        self._process = subprocess.Popen(
            [self._perf, "record", "-q", "-F", "999", "-p", f"{self._pid}", "-o", self._output],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def stop(self) -> None:
        """End the sampling (perf writes its file in the meantime)."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGINT)

    def result(self) -> Profile:
        """Wait for perf and return the split."""
        if self._perf is None:
            return Profile(problem="`perf` is not installed: no split into C, Python and kernel")
        if self._process is None:
            return Profile(problem="the measured window never opened")
        _, complaint = self._process.communicate()
        if not self._output.exists():
            text = complaint.decode(errors="replace").strip() or "no data file"
            return Profile(problem=f"`perf record` failed: {' '.join(text.split())[:300]}")
        command = [self._perf, "report", "-i", f"{self._output}", "--stdio", "--sort", "dso"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        percent = read_report(done.stdout)
        if not percent:
            return Profile(problem=f"`perf report` shows nothing: {done.stderr.strip()[:300]}")
        return Profile(percent=percent)
