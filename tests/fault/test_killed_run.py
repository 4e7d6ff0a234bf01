"""A test run that is killed leaves nothing behind: no mount, no loop device, no broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.mount_guard import MountsLeftError, mounts_end_with
from vespiary_testkit.small_disk import MIB, mounted_again, small_disk
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.verify

_RUN = """
import contextlib, signal, sys
from pathlib import Path
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mount_guard import mounts_end_with
from vespiary_testkit.small_disk import MIB, hanging, small_disk
base = Path(sys.argv[1])
with contextlib.ExitStack() as stack:
    stack.enter_context(mounts_end_with(base))
    below = stack.enter_context(small_disk(base / "below", 64 * MIB))
    volume = stack.enter_context(small_disk(below / "volume", 32 * MIB))
    broker = BrokerProcess(volume / "data", "journal-file-size=1MiB", "max-disk-usage=100")
    broker.start()
    frozen = stack.enter_context(small_disk(base / "frozen", 16 * MIB))
    stack.enter_context(hanging(frozen))
    print(broker.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with small_disk(tmp_path / "probe", 4 * MIB):
        pass  # skips where nothing can be mounted
    made = tmp_path / "run"
    made.mkdir()
    return made


def mounted_below(folder: Path) -> list[str]:
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def loop_devices_below(folder: Path) -> list[str]:
    said = subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if str(folder) in line]


def test_a_killed_run_leaves_no_mount_no_device_and_no_broker(base: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(base)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert run.stdout is not None
    broker = int(run.stdout.readline())
    assert len(mounted_below(base)) == 3
    assert len(loop_devices_below(base)) == 3
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    wait_for(lambda: not mounted_below(base), lambda: f"still mounted: {mounted_below(base)}")
    wait_for(lambda: not Path(f"/proc/{broker}").exists(), "the broker goes on")
    wait_for(lambda: not loop_devices_below(base), lambda: str(loop_devices_below(base)))
    run.stdout.close()


def test_a_mount_that_a_test_forgets_is_told_and_taken_back(base: Path) -> None:
    with small_disk(base / "disk", 4 * MIB):
        pass
    forgotten = mounted_again(base / "disk")
    with pytest.raises(MountsLeftError, match="disk/mount"), mounts_end_with(base):
        forgotten.__enter__()
    with pytest.raises(subprocess.CalledProcessError):
        forgotten.__exit__(None, None, None)  # nothing is left to unmount
    assert not mounted_below(base)
