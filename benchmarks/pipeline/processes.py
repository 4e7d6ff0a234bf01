"""What Spark's processes have used: the JVM, and the Python workers that it starts.

Owns nothing. Must never: count the broker, which is a child of the same process. Called by
`benchmarks.pipeline.streaming`.
"""

import os
from collections import defaultdict
from pathlib import Path

import msgspec

from benchmarks import usage

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class SparkUsage(msgspec.Struct, frozen=True):
    """Processor time so far.

    Attributes:
        jvm_s: Of the JVM: the driver, and the tasks' own part.
        python_s: Of all Python processes below it, those that have ended among them.
        worker_peak_bytes: Peak of memory of the largest of those.
    """

    jvm_s: float
    python_s: float
    worker_peak_bytes: int

    def since(self, earlier: "SparkUsage") -> "SparkUsage":
        """Return the difference of the times, with this sample's memory."""
        return SparkUsage(
            self.jvm_s - earlier.jvm_s, self.python_s - earlier.python_s, self.worker_peak_bytes
        )


class SparkProcesses:
    """The processes of the Spark that this process has started.

    Workers come and go, and nobody counts for those that went: look often.

    Raises:
        RuntimeError: It has started none.
    """

    def __init__(self) -> None:
        own = _children()[os.getpid()]
        found = next((pid for pid in own if _name(pid) == "java"), None)
        if found is None:
            raise RuntimeError("no JVM was started by this process")
        self._jvm = found
        self._spent_s: dict[int, float] = {}
        self._peak_bytes = 0

    def look(self) -> SparkUsage:
        """Return what all of them have used so far, as far as they were seen."""
        children = _children()
        todo = [self._jvm]
        while todo:
            pid = todo.pop()
            todo += children[pid]
            try:
                self._spent_s[pid] = sum(int(field) * _TICK_S for field in _stat(pid)[11:13])
                if pid != self._jvm:
                    peak_bytes = usage.sample(pid).rss_peak_bytes
                    self._peak_bytes = max(self._peak_bytes, peak_bytes)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue  # it ended meanwhile
        jvm_s = self._spent_s[self._jvm]
        return SparkUsage(jvm_s, sum(self._spent_s.values()) - jvm_s, self._peak_bytes)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's stat that follow its name, which may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _name(pid: int) -> str:
    return (_PROC / str(pid) / "comm").read_text().strip()


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            found[int(_stat(int(entry.name))[1])].append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
