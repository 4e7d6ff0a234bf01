"""One broker for one folder, and a sentence for the second."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_broker.store.lock import LOCK_NAME, FolderLock
from vespiary_spec.errors import JournalLocked, NativeError

HOLDER = """
import sys
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


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
@pytest.mark.parametrize(
    ("mode", "answer"), [(0o666, "held True"), (0o444, "held True"), (0o600, "NativeError")]
)
def test_another_user_needs_to_read_the_file_only(tmp_path: Path, mode: int, answer: str):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (tmp_path / LOCK_NAME).write_text("{}")
    (tmp_path / LOCK_NAME).chmod(mode)
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(tmp_path), os.pathsep.join(sys.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == answer, ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_another_user_is_kept_out_by_a_read_only_lock(tmp_path: Path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    lock = FolderLock(tmp_path)
    (tmp_path / LOCK_NAME).chmod(0o444)
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(tmp_path), os.pathsep.join(sys.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == "JournalLocked", ran.stderr
    lock.close()
