import os
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import statfs


def test_the_numbers_are_those_of_statvfs(tmp_path: Path) -> None:
    ours, theirs = statfs.read(str(tmp_path)), os.statvfs(tmp_path)
    assert ours.size_bytes == theirs.f_blocks * theirs.f_frsize
    assert ours.inodes == theirs.f_files
    assert ours.is_read_only is bool(theirs.f_flag & os.ST_RDONLY)
    # Other processes write meanwhile; a wrong field or unit would be off by far more.
    assert abs(ours.free_bytes - theirs.f_bavail * theirs.f_frsize) < 1 << 30


@pytest.mark.parametrize(("path", "magic"), [("/proc", 0x9FA0), ("/sys", 0x62656572)])
def test_the_magic_number(path: str, magic: int) -> None:
    assert statfs.read(path).magic == magic


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        statfs.read(str(tmp_path / "missing"))
