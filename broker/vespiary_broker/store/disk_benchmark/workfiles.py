"""The files of a disk benchmark: made in a folder of their own, and gone at its end.

Owns: one new folder with everything that a run writes. Must never touch a file or folder that was
there before, and must leave nothing behind, whatever ends the run (but SIGKILL). Called by
`benchmark`.

The files keep their names while they are written: some filesystems (btrfs) skip their log for files
without one, so an unlinked file would look faster than a journal's.
"""

from __future__ import annotations

import errno
import secrets
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from vespiary_broker.store.disk import FOLDER_MODE, Disk, DiskFile
from vespiary_broker.store.disk_benchmark.results import GROWING, Making
from vespiary_broker.store.preallocation import Preallocator
from vespiary_spec.errors import DiskFull, NativeError, StorageError
from vespiary_spec.settings import PreallocationStrategy
from vespiary_spec.units import format_size_rounded

FOLDER_PREFIX = ".vespiary-disk-benchmark-"
_TEMPLATE = "template"
_SPARE_SHARE = 0.05
"""Share of the files' size that must be free beyond them: the filesystem's own needs."""


def place_of(target: Path) -> Path:
    """Return the folder to make for a run.

    Args:
        target: A folder, or a name that is not taken.

    Raises:
        StorageError: It is a file that exists, or lies in no folder.
    """
    if target.is_dir():
        return target / f"{FOLDER_PREFIX}{secrets.token_hex(4)}"
    if target.exists() or target.is_symlink():
        raise StorageError(
            "the file exists, and a benchmark never writes into what is there",
            where=str(target),
            cure="name a file that does not exist, or a folder",
        )
    if not target.parent.is_dir():
        raise StorageError("there is no such folder", where=str(target.parent))
    return target


def needed_bytes(file_bytes: int) -> int:
    """Return what all files of a run take: one for each strategy, one that grows, a template."""
    return file_bytes * (len(PreallocationStrategy) + 2)


class WorkFiles:
    """The files of one run. Owner: the thread that runs it; a context manager around `make`.

    Attributes:
        folder: Where they lie.
        is_direct: Whether they are open with O_DIRECT.
        files: Open files by preallocation.
        making: How each got its size.
    """

    def __init__(self, folder: Path, file_bytes: int, disk: Disk | None = None) -> None:
        """Prepare; nothing is made before `make`.

        Args:
            folder: A name that is not taken.
            file_bytes: Size of each file, a multiple of 4096.
            disk: The file system.
        """
        self.folder = folder
        self.is_direct = True
        self.files: dict[str, DiskFile] = {}
        self.making: list[Making] = []
        self._file_bytes = file_bytes
        self._disk = disk or Disk()
        self._is_made = False

    def __enter__(self) -> Self:
        """Begin; nothing is made before `make`, so that no interrupt finds files without owner."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def make(self) -> None:
        """Make and fill the files, once.

        Raises:
            DiskFull: There is not room enough; nothing was made.
            StorageError: The folder can't be made.
            NativeError: A call failed; the end of the block removes what was made.
        """
        self._check_space()
        self._make_folder()
        self.is_direct = self._has_direct()
        for strategy in PreallocationStrategy:
            self._make(strategy)
        self.files[GROWING] = self._disk.create(self.folder / GROWING, is_direct=self.is_direct)
        self._disk.flush_folder(self.folder)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(FOLDER_MODE)
            self._is_made = True
        except OSError as error:
            raise StorageError(
                f"the folder cannot be made ({error.strerror})", where=str(self.folder)
            ) from error
        except BaseException:
            # Interrupted before or behind the call: an empty folder of that name is ours.
            with suppress(OSError):
                self.folder.rmdir()
            raise

    def _check_space(self) -> None:
        needed = int(needed_bytes(self._file_bytes) * (1 + _SPARE_SHARE))
        free = self._disk.usage(self.folder.parent).free
        if free < needed:
            raise DiskFull(
                "there is not room enough for the benchmark's files",
                where=str(self.folder.parent),
                measured=f"{format_size_rounded(free)} free",
                allowed=f"{format_size_rounded(needed)} or more",
                cure="take a smaller --size, or make room",
            )

    def _has_direct(self) -> bool:
        """Try O_DIRECT, as some filesystems do not have it."""
        try:
            self._disk.create(self.folder / "direct", is_direct=True).close()
        except NativeError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            return False
        finally:
            (self.folder / "direct").unlink(missing_ok=True)
        return True

    def _make(self, strategy: PreallocationStrategy) -> None:
        maker = Preallocator(
            self.folder / _TEMPLATE, self._disk, strategy, is_direct=self.is_direct
        )
        if strategy is PreallocationStrategy.OS_KERNEL_COPY:
            # Once for the template, which a journal makes once too.
            maker.make(self.folder / strategy, self._file_bytes).close()
        begin_s = time.perf_counter()
        file = maker.make(self.folder / strategy, self._file_bytes)
        file.flush()
        seconds = time.perf_counter() - begin_s
        self.files[strategy] = file
        self.making.append(
            Making(
                preallocation=str(strategy),
                seconds=seconds,
                bytes_per_s=self._file_bytes / seconds,
                note=f"refused here: {maker.strategy} was used" if maker.fallbacks else "",
            )
        )

    def remove(self) -> None:
        """Close and remove everything; what is not there is no error."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        if not self._is_made:
            return
        for name in (*PreallocationStrategy, GROWING, _TEMPLATE, "direct"):
            (self.folder / name).unlink(missing_ok=True)
        self.folder.rmdir()
        self._is_made = False
