"""What Spark's processes have used: the JVM, and the Python workers that it starts.

Owns nothing. Must never: count the broker, which is a child of the same process. Called by
`benchmarks.pipeline.streaming` and `sinking`.
"""

import os
from collections import defaultdict
from pathlib import Path

import msgspec

from benchmarks import usage

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class SparkUsage(msgspec.Struct, frozen=True):
    """Processor time since the processes began; those that ended are counted with their parents.

    Attributes:
        jvm_s: Of the JVM: the driver, and the tasks' own part.
        python_s: Of all Python processes below it.
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


def spark_usage() -> SparkUsage:
    """Return what Spark has used that this process has started.

    Raises:
        RuntimeError: It has started none.
    """
    children = _children()
    own = os.getpid()
    jvm = next((pid for pid in children[own] if _name(pid) == "java"), None)
    if jvm is None:
        raise RuntimeError("no JVM was started by this process")
    jvm_s = python_s = 0.0
    peak_bytes = 0
    todo = [jvm]
    while todo:
        pid = todo.pop()
        todo += children[pid]
        try:
            fields = _stat(pid)
            is_jvm = pid == jvm
            # The JVM's own children that have ended were Python's.
            spent_s = [int(field) * _TICK_S for field in fields[11:15]]
            jvm_s += sum(spent_s[:2]) if is_jvm else 0.0
            python_s += sum(spent_s[2:]) if is_jvm else sum(spent_s)
            if not is_jvm:
                peak_bytes = max(peak_bytes, usage.sample(pid).rss_peak_bytes)
        except (FileNotFoundError, ProcessLookupError, KeyError):
            continue  # it ended meanwhile
    return SparkUsage(jvm_s, python_s, peak_bytes)


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
