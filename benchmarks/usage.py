"""What a process has used, read from /proc.

Owns nothing. Must never: need more rights than those of the process's own user. Called by
`benchmarks.broker`.
"""

import os
from pathlib import Path

import msgspec

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """Totals since the process began; `rss_*` are bytes at this moment and at the peak."""

    user_s: float
    system_s: float
    voluntary_switches: int
    involuntary_switches: int
    rss_bytes: int
    rss_peak_bytes: int

    def since(self, earlier: "Usage") -> "Usage":
        """Return the difference of the totals, with this sample's memory."""
        return Usage(
            user_s=self.user_s - earlier.user_s,
            system_s=self.system_s - earlier.system_s,
            voluntary_switches=self.voluntary_switches - earlier.voluntary_switches,
            involuntary_switches=self.involuntary_switches - earlier.involuntary_switches,
            rss_bytes=self.rss_bytes,
            rss_peak_bytes=self.rss_peak_bytes,
        )


def _status(path: Path) -> dict[str, str]:
    lines = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return {name: value.split()[0] if value.split() else "" for name, value in lines}


def sample(pid: int) -> Usage:
    """Read the CPU time (all threads, in clock ticks of 10 ms), switches and memory of a process.

    Raises:
        FileNotFoundError: The process has ended.
    """
    process = Path("/proc") / str(pid)
    # Fields of stat follow the last ')': the name before it may hold anything.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    threads = [_status(task / "status") for task in (process / "task").iterdir()]
    status = _status(process / "status")
    return Usage(
        user_s=int(fields[11]) * _TICK_S,
        system_s=int(fields[12]) * _TICK_S,
        voluntary_switches=sum(int(t["voluntary_ctxt_switches"]) for t in threads),
        involuntary_switches=sum(int(t["nonvoluntary_ctxt_switches"]) for t in threads),
        rss_bytes=int(status["VmRSS"]) * 1024,
        rss_peak_bytes=int(status["VmHWM"]) * 1024,
    )
