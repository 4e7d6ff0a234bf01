"""Folders of addresses: any name, durable before the first page, never mistaken for another's."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.paging.folders import (
    PageFolders,
    folder_name,
    page_name,
    read_page_name,
    unfinished_name,
)
from vespiary_spec.errors import NativeError, StorageError
from vespiary_testkit.faulty_disk import MemoryDisk

ROOT = Path("/paging")
NAMES = [
    "orders",
    "orders/eu/../../../etc/passwd",
    "..",
    ".",
    "/",
    "a\0b\nc",
    "é" * 500,
    "x" * 1024,
]


@pytest.mark.parametrize("address", NAMES)
def test_an_address_of_any_name_has_a_folder_below_the_directory(
    tmp_path: Path, address: str
) -> None:
    folders = PageFolders(tmp_path / "paging", Disk())
    folder = folders.make(address)
    assert folder.parent == tmp_path / "paging"
    assert (folder / "address").read_bytes() == address.encode()
    assert folders.read_address(folder) == address
    assert folders.walk() == [folder]
    assert PageFolders(tmp_path / "paging", Disk()).make(address) == folder


@pytest.mark.parametrize("step", ["mkdir", "rename"])
def test_pages_that_are_the_first_at_once_have_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A page each in a thread of its own: the second comes while the first is at it."""
    real, both = getattr(os, step), threading.Barrier(2)

    def slow(*args: Any, **names: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        real(*args, **names)

    folders = PageFolders(tmp_path, Disk())
    monkeypatch.setattr(os, step, slow)
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(folders.make, ["orders", "orders"]))
    assert made == [folders.path("orders")] * 2
    assert (made[0] / "address").read_bytes() == b"orders"


def test_ten_thousand_addresses_have_as_many_folders() -> None:
    assert len({folder_name(f"address {number}") for number in range(10_000)}) == 10_000


def test_the_name_is_flushed_before_it_counts() -> None:
    disk = MemoryDisk()
    folder = PageFolders(ROOT, disk).make("orders")
    kinds = [op.kind for op in disk.log]
    assert kinds == ["make", "write", "flush", "rename", "folder"]
    assert set(disk.files) == {folder / "address"}


@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_folder"])
def test_a_folder_that_could_not_be_made_is_made_the_next_time(kind: str) -> None:
    disk = MemoryDisk()
    folders = PageFolders(ROOT, disk)
    disk.fail = lambda what, _: errno.EIO if what == kind else 0
    with pytest.raises(NativeError):
        folders.make("orders")
    disk.fail = lambda *_: 0
    folder = folders.make("orders")
    assert folders.read_address(folder) == "orders"
    assert set(disk.files) == {folder / "address"}


def test_the_folder_of_another_address_is_not_used() -> None:
    disk = MemoryDisk()
    folder = PageFolders(ROOT, disk).make("orders")
    disk.files[folder / "address"].data[:] = b"others"
    with pytest.raises(StorageError, match="another address") as caught:
        PageFolders(ROOT, disk).make("orders")
    assert caught.value.where == str(folder / "address")


def test_a_folder_that_was_looked_at_is_not_looked_at_again_until_told() -> None:
    disk = MemoryDisk()
    folders = PageFolders(ROOT, disk)
    folder = folders.make("orders")
    steps = len(disk.log)
    folders.make("orders")
    assert len(disk.log) == steps
    del disk.files[folder / "address"]
    folders.forget("orders")
    folders.make("orders")
    assert folder / "address" in disk.files


def test_a_folder_goes_only_when_it_is_empty(tmp_path: Path) -> None:
    folders = PageFolders(tmp_path, Disk())
    folder = folders.make("orders")
    (folder / page_name(1)).write_bytes(b"x")
    assert not folders.remove_if_empty("orders")
    (folder / page_name(1)).unlink()
    assert folders.remove_if_empty("orders")
    assert list(tmp_path.iterdir()) == []
    assert folders.make("orders") == folder
    assert folder.is_dir()


def test_what_is_no_folder_of_an_address_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".vespiary").mkdir()
    assert PageFolders(tmp_path, Disk()).walk() == []


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (page_name(255), (255, False)),
        (unfinished_name(2**61), (2**61, True)),
        ("00000000000000FF.page", None),
        ("1.page", None),
        ("address", None),
        ("00000000000000ff.page.bak", None),
    ],
)
def test_names_of_pages(name: str, read: tuple[int, bool] | None) -> None:
    assert read_page_name(name) == read
