"""The folder that an import makes: staged beside its place, there whole or not at all.

Owns the names of what is staged, who may go on with it, and the one step that makes it visible:

    .NAME.import-RANDOM/tasks/…     what tasks wrote
    .NAME.import-RANDOM/data/…      what becomes NAME, by a rename, when all of it is flushed
    .NAME.import-RANDOM.void/…      of an import that was killed or that another one took over from

The latest import into a folder wins: it renames what earlier ones have staged before it begins, so
those find their folder gone, whatever they do next, and end. Nobody has to know whether they live:
of a killed driver nothing is left that could be asked. Must never touch the folder itself but by
that last rename, which a file system refuses if something is in it. Called by `writer`.
"""

from __future__ import annotations

import errno
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vespiary_pipeline.imports.settling import flush_folder
from vespiary_pipeline.targets import disk_errors
from vespiary_spec.errors import ImportRefused

_VOID: Final = ".void"
_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class Staging:
    """What is staged for one import; pickled with the writer.

    Attributes:
        target: The folder that it becomes.
        folder: Where it is staged.
    """

    def __init__(self, target: Path) -> None:
        """Clear what earlier imports left, and begin.

        Args:
            target: The folder to make: missing or empty.

        Raises:
            ImportRefused: Something is there.
            DiskFull: There is no room.
            NativeError: A call failed.
        """
        self.target = target.absolute()
        prefix = f".{self.target.name}.import-"
        self.folder = self.target.with_name(prefix + secrets.token_hex(8))
        with disk_errors("the folder for the import can't be made", self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            for found in sorted(self.target.parent.iterdir()):
                if found.name.startswith(prefix):
                    _clear(found)
            check_empty(self.target)
            for folder in (self.folder, self.tasks, self.data):
                folder.mkdir(mode=0o750)

    @property
    def tasks(self) -> Path:
        """Where tasks write."""
        return self.folder / "tasks"

    @property
    def data(self) -> Path:
        """What becomes the folder."""
        return self.folder / "data"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Say of a call on files that failed whether another import has begun meanwhile.

        Raises:
            ImportRefused: Another one did.
        """
        try:
            yield
        except OSError as error:
            if not self.folder.is_dir():
                raise _taken_over(self.target) from error
            raise

    def begin_task(self, partition: int) -> Path:
        """Make the folder of one try of a task.

        Args:
            partition: Number of its partition.

        Raises:
            ImportRefused: Another import has begun.
            NativeError: A call failed.
        """
        folder = self.tasks / f"{partition}-{secrets.token_hex(4)}"
        with disk_errors("the folder of a task can't be made", folder):
            try:
                folder.mkdir(mode=0o750)
            except FileNotFoundError as error:
                raise _taken_over(self.target) from error
        return folder

    def publish(self) -> None:
        """Make what is in `data` the folder.

        Raises:
            ImportRefused: Something is there by now.
            NativeError: A call failed, as all do once another import has begun.

        Durability: on return the folder survives a power cut; what is in it was flushed before.
        """
        with disk_errors("the folder can't get its name", self.target):
            flush_folder(self.data)
            try:
                self.data.rename(self.target)
            except OSError as error:
                if error.errno in _TAKEN:
                    raise _in_the_way(self.target, "something") from error
                raise
            flush_folder(self.target.parent)
        shutil.rmtree(self.folder, ignore_errors=True)  # what is left goes with the next import

    def drop(self) -> None:
        """Remove what was staged."""
        if self.folder.is_dir():
            with disk_errors("what was staged can't be removed", self.folder):
                _clear(self.folder)


def check_empty(target: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        ImportRefused: It does, or something else has its name.
        NativeError: It can't be looked at.
    """
    with disk_errors("the folder can't be looked at", target):
        if not target.exists():
            return
        first = next(target.iterdir(), None) if target.is_dir() else target
    if first is not None:
        raise _in_the_way(target, first.name)


def _clear(found: Path) -> None:
    """Remove what is staged; first its name, so that whoever writes it stops."""
    void = found
    if found.suffix != _VOID:
        void = found.with_name(found.name + _VOID)
        found.rename(void)
    shutil.rmtree(void)


def _in_the_way(target: Path, found: str) -> ImportRefused:
    return ImportRefused(
        "an import needs an empty or a new folder", where=str(target),
        measured=f"{found} is there", cure="give another folder",
    )  # fmt: skip


def _taken_over(target: Path) -> ImportRefused:
    return ImportRefused(
        "another import into this folder has begun, and took this one's place",
        where=str(target), cure="run one at a time",
    )  # fmt: skip
