"""What the broker opens by a name: regular files, and links only where people provide the file."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_spec.regular_files import NotRegular, open_regular, read_regular


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_pipe, make_socket, link_to_device])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
def test_what_is_no_regular_file_is_rejected_at_once(
    tmp_path: Path, make: Callable[[Path], None], flags: int
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(NotRegular):
        open_regular(path, flags, follows_links=True)
    with pytest.raises(NotRegular):
        read_regular(path)
    with pytest.raises(OSError, match=r"."):
        open_regular(path, flags)


def test_a_folder_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path, os.O_RDONLY)


def test_links_are_followed_only_where_they_may_be(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"content")
    link.symlink_to(target)
    assert read_regular(link) == b"content"
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError, match=r".") as raised:
            open_regular(link, flags)
        assert raised.value.errno == errno.ELOOP
    assert target.read_bytes() == b"content"


def test_a_folder_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    os.close(open_regular(tmp_path / "linked" / "file", os.O_RDWR | os.O_CREAT, 0o640))
    assert (tmp_path / "real" / "file").stat().st_mode & 0o777 == 0o640


def test_a_file_waits_for_its_disk_as_usual(tmp_path: Path) -> None:
    descriptor = open_regular(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert os.get_blocking(descriptor), "rings answer EAGAIN otherwise"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(OSError, match=r".") as raised:
        read_regular(path)
    assert raised.value.errno == errno.EFBIG
