"""One broker for one folder, and a sentence for the second."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.store.lock import LOCK_NAME, FolderLock, wait_for_folder
from vespiary_spec.errors import JournalLocked, NativeError
from vespiary_testkit.journal_workload import run
from vespiary_testkit.waiting import WAIT_S

HOLDER = """
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from vespiary_broker.store.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_owner_stands_in_the_file(tmp_path: Path):
    lock = FolderLock(tmp_path)
    owner = json.loads((tmp_path / LOCK_NAME).read_text())
    assert owner["pid"] == os.getpid()
    assert owner["id"] == lock.owner_id
    assert set(owner) == {"pid", "host", "id", "started"}
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o660
    lock.close()


def test_a_second_one_is_told_who_holds_it(tmp_path: Path):
    lock = FolderLock(tmp_path)
    with pytest.raises(JournalLocked, match=f"process id {os.getpid()} on host") as caught:
        FolderLock(tmp_path)
    assert caught.value.where == str(tmp_path / LOCK_NAME)
    assert "folder of its own" in caught.value.cure
    lock.close()
    lock.close()
    FolderLock(tmp_path).close()


def test_another_process_is_kept_out_and_its_death_lets_go(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JournalLocked, match=f"process id {holder.pid}"):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait()
        lock = FolderLock(tmp_path)
        assert lock.is_held
        lock.close()


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[1]", b"{}"])
def test_a_lock_file_without_a_name_in_it_is_no_obstacle(tmp_path: Path, text: bytes):
    (tmp_path / LOCK_NAME).write_bytes(text)
    lock = FolderLock(tmp_path)
    os.truncate(tmp_path / LOCK_NAME, 0)
    os.write(os.open(tmp_path / LOCK_NAME, os.O_WRONLY), text)
    with pytest.raises(JournalLocked, match="another process"):
        FolderLock(tmp_path)
    lock.close()


def test_a_link_is_not_followed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"content")
    (tmp_path / LOCK_NAME).symlink_to(precious)
    with pytest.raises(NativeError, match="symbolic link") as caught:
        FolderLock(tmp_path)
    assert caught.value.where == str(tmp_path / LOCK_NAME)
    assert "remove it" in caught.value.cure
    assert precious.read_bytes() == b"content"
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "nowhere")
    with pytest.raises(NativeError, match="symbolic link"):
        FolderLock(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_no_lock(tmp_path: Path):
    os.mkfifo(tmp_path / LOCK_NAME)
    with pytest.raises(NativeError, match="cannot open the lock's file") as caught:
        FolderLock(tmp_path)
    assert "remove it" in caught.value.cure


def test_without_a_folder_it_says_so(tmp_path: Path):
    with pytest.raises(NativeError, match="No such file"):
        FolderLock(tmp_path / "missing")


OTHER_USER = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(os.pathsep)
from vespiary_broker.store.lock import FolderLock
from vespiary_spec.errors import VespiaryError
os.setgid(54321)
os.setuid(54321)
try:
    lock = FolderLock(Path(sys.argv[1]))
    print("held", lock.is_held)
except VespiaryError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that all users reach: pytest's own ones are one user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
@pytest.mark.parametrize(
    ("mode", "answer"), [(0o666, "held True"), (0o444, "held True"), (0o600, "NativeError")]
)
def test_another_user_needs_to_read_the_file_only(public: Path, mode: int, answer: str):
    (public / LOCK_NAME).write_text("{}")
    (public / LOCK_NAME).chmod(mode)
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(public), os.pathsep.join(sys.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == answer, ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_another_user_is_kept_out_by_a_read_only_lock(public: Path):
    lock = FolderLock(public)
    (public / LOCK_NAME).chmod(0o444)
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(public), os.pathsep.join(sys.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == "JournalLocked", ran.stderr
    lock.close()


@run
async def test_waiting_ends_when_the_owner_lets_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    holder = FolderLock(tmp_path)
    asyncio.get_running_loop().call_later(0.05, holder.close)

    async def take() -> FolderLock:
        return FolderLock(tmp_path)

    lock = await wait_for_folder(take, timeout_s=None)
    assert lock.is_held
    lock.close()
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "waiting for good" in said.getMessage()
    assert f"process id {os.getpid()}" in said.getMessage()


@pytest.mark.parametrize("timeout_s", [0.0, 0.15])
@run
async def test_waiting_has_a_bound(tmp_path: Path, timeout_s: float):
    holder = FolderLock(tmp_path)
    tries = 0

    async def take() -> FolderLock:
        nonlocal tries
        tries += 1
        return FolderLock(tmp_path)

    with pytest.raises(JournalLocked, match=f"process id {os.getpid()}") as caught:
        await wait_for_folder(take, timeout_s=timeout_s)
    holder.close()
    assert (tries == 1) is (timeout_s == 0.0)
    assert ("journal-lock-acquisition-timeout" in str(caught.value)) is (timeout_s > 0)


@run
async def test_waiting_can_be_called_off(tmp_path: Path):
    holder = FolderLock(tmp_path)
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, stop.set)

    async def take() -> FolderLock:
        return FolderLock(tmp_path)

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(JournalLocked):
            await wait_for_folder(take, timeout_s=None, stop=stop)
    holder.close()
