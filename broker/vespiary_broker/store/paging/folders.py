"""The folders of paging: one for each address, below `paging-directory`.

Owns their names and the file `address` in each. An address may hold slashes, dots and anything
else, so a folder's name is a hash of it, and the file says which one it is. Must never take the
name of a folder for an answer: pages are found by their headers. All calls block; called by
`page_files` and `page_recovery` in paging's threads.

Layout: `paging-directory/HASH/address` with the name in UTF-8, and beside it `%016x.page`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Final

from vespiary_broker.store.disk import DiskLike
from vespiary_codec.journal.page import ADDRESS_BYTES_MAX
from vespiary_spec.errors import NativeError, StorageError

ADDRESS_FILE: Final = "address"
_FOLDER: Final = re.compile(r"[0-9a-f]{32}")
_PAGE: Final = re.compile(r"([0-9a-f]{16})\.page(\.tmp)?")


def page_name(page_id: int) -> str:
    """Return the name of a page's file."""
    return f"{page_id:016x}.page"


def unfinished_name(page_id: int) -> str:
    """Return the name that a page has while it is written."""
    return f"{page_id:016x}.page.tmp"


def folder_name(address: str) -> str:
    """Return the name of an address's folder: 128 bits of a hash, in hexadecimal."""
    return hashlib.sha256(address.encode()).hexdigest()[:32]


def read_page_name(name: str) -> tuple[int, bool] | None:
    """Return (page id, whether it is unfinished) of a file's name; None if it is no page's."""
    match = _PAGE.fullmatch(name)
    return (int(match[1], 16), match[2] is not None) if match else None


class PageFolders:
    """The folders. Several threads may make one at once: the first pages of an address.

    Args:
        directory: `paging-directory`.
        disk: The file system.
    """

    def __init__(self, directory: Path, disk: DiskLike) -> None:
        self.directory = directory
        self._disk = disk
        self._made: set[str] = set()
        self._making = threading.Lock()

    def path(self, address: str) -> Path:
        """Return where the pages of an address lie."""
        return self.directory / folder_name(address)

    def make(self, address: str) -> Path:
        """Make the folder of an address, or find it made.

        Raises:
            StorageError: The folder is another address's.
            NativeError: A call failed.

        Durability: on return the folder, and the file that says whose it is, survive a power cut.
        """
        folder = self.path(address)
        if folder.name in self._made:
            return folder
        with self._making:
            if folder.name in self._made:
                return folder
            self._disk.make_folder(folder)
            names = self._disk.names(folder)
            if ADDRESS_FILE in names:
                self._check(folder, address)
            else:
                self._write_address(folder, address, names)
            self._made.add(folder.name)
        return folder

    def forget(self, address: str) -> None:
        """Look at the folder of an address again before the next page: somebody took it away."""
        self._made.discard(folder_name(address))

    def _write_address(self, folder: Path, address: str, names: list[str]) -> None:
        unfinished = folder / f"{ADDRESS_FILE}.tmp"
        if unfinished.name in names:
            self._disk.remove(unfinished)
        file = self._disk.create(unfinished, is_direct=False)
        try:
            file.write(memoryview(address.encode()), 0)
            file.flush()
        finally:
            file.close()
        self._disk.rename(unfinished, folder / ADDRESS_FILE)
        self._disk.flush_folder(folder)

    def _check(self, folder: Path, address: str) -> None:
        found = self.read_address(folder)
        if found != address:
            raise StorageError(
                "a folder of pages belongs to another address",
                where=str(folder / ADDRESS_FILE),
                measured=f"{found!a:.200}",
                allowed=f"{address!a:.200}",
                cure="put back the file `address` of this folder, or move the folder elsewhere",
            )

    def read_address(self, folder: Path) -> str:
        """Return what the file `address` in a folder says; empty if there is none."""
        if ADDRESS_FILE not in self._disk.names(folder):
            return ""
        file = self._disk.open(folder / ADDRESS_FILE, is_direct=False, is_readonly=True)
        try:
            data = bytearray(ADDRESS_BYTES_MAX + 1)
            count = file.read_into(memoryview(data), 0)
        finally:
            file.close()
        return data[:count].decode(errors="replace")

    def walk(self) -> list[Path]:
        """Return the folders that have the name of an address's, in any order."""
        names = self._disk.names(self.directory)
        return [self.directory / name for name in names if _FOLDER.fullmatch(name)]

    def remove_if_empty(self, address: str) -> bool:
        """Remove the folder of an address that has no pages (`purge-page-folders`).

        Returns:
            Whether it was removed.

        Raises:
            NativeError: A call failed.
        """
        folder = self.path(address)
        if self._disk.names(folder) != [ADDRESS_FILE]:
            return False
        self._made.discard(folder.name)
        self._disk.remove(folder / ADDRESS_FILE)
        self._disk.flush_folder(folder)
        self._disk.remove_folder(folder)
        self._disk.flush_folder(self.directory)
        return True

    def remove_quietly(self, path: Path) -> NativeError | None:
        """Remove a file that nobody needs; return what failed, which the next start mends."""
        try:
            self._disk.remove(path)
        except NativeError as error:
            return error
        return None
