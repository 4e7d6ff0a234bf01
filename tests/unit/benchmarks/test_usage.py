"""What /proc says about a process."""

import os
import time

import pytest

from benchmarks import usage


def test_own_use_grows_and_differences_are_taken() -> None:
    before, begun_s = usage.sample(os.getpid()), time.process_time()
    block = bytes(64 << 20)
    while (used := usage.sample(os.getpid()).since(before)).user_s + used.system_s < 0.03:
        sum(range(100_000))
    ticks_s = 4 / os.sysconf("SC_CLK_TCK")  # both samples are cut off to whole ticks
    assert used.user_s + used.system_s <= time.process_time() - begun_s + ticks_s
    assert used.rss_bytes > 10 << 20
    assert used.rss_peak_bytes >= used.rss_bytes
    assert len(block) == 64 << 20


def test_an_ended_process_is_told() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    with pytest.raises(FileNotFoundError):
        usage.sample(pid)
