"""`vespiary export-journal`, `import-journal`, `journal export`, `journal import`.

Owns: the commands and the text's file. An export never writes to the journal's folder, and its text
gets its name when it is whole. An import takes the lock of the folder that it fills. Called by
`program` and `journals`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import (
    CountingDisk,
    body_place,
    journals_in,
    large_folder_of,
    large_option,
    progress_steps,
    show_bodies,
)
from vespiary_broker.store.body_files import (
    FOLDER_NAME,
    CopiedBodies,
    copy_bodies,
    read_names,
    write_names,
)
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.exporting import ExportReport, export_journal, form_of
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.importing import ImportReport, JournalImport
from vespiary_broker.store.live_set import LiveBody, LiveSet
from vespiary_broker.store.lock import FolderLock
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.verifying import BodyPlace
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.large_reference import body_name
from vespiary_codec.journal.text import TextFormError, TextReader
from vespiary_spec import limits, units
from vespiary_spec.errors import QuantityError, VespiaryError

F = TypeVar("F", bound=Callable[..., Any])

_STANDARD: Final = "-"
_MIB: Final = 1024 * 1024
_FORMS: Final = {
    JournalKind.MESSAGE: ("activemq-data", "hq", 10 * _MIB),
    JournalKind.BINDINGS: ("activemq-bindings", "bindings", limits.BINDINGS_FILE_BYTES),
    JournalKind.JMS: ("activemq-jms", "jms", limits.BINDINGS_FILE_BYTES),
    JournalKind.PAGE: ("page", "page", 10 * _MIB),
}
"""Prefix, extension and size of the files that a broker looks for."""

_folder = click.Path(file_okay=False, path_type=Path)
_text = click.Path(dir_okay=False, path_type=Path, allow_dash=True)


class SizeType(click.ParamType[int | None]):
    """A file size such as `10485760` or `10MiB`."""

    name = "SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the bytes."""
        if value is None or isinstance(value, int):
            return value
        try:
            size_bytes = units.parse_size(value)
        except QuantityError as error:
            self.fail(str(error), param, ctx)
        if size_bytes % limits.BLOCK_BYTES or size_bytes < limits.JOURNAL_FILE_BYTES_MIN:
            self.fail(
                f"a journal file has a multiple of {limits.BLOCK_BYTES} bytes, at least "
                f"{limits.JOURNAL_FILE_BYTES_MIN}",
                param,
                ctx,
            )
        return size_bytes


def _five_arguments(function: F) -> F:
    for argument in (
        click.argument("text_file", type=_text, metavar="TEXT_FILE"),
        click.argument("file_size", type=SizeType(), metavar="FILE_SIZE"),
        click.argument("extension", metavar="EXTENSION"),
        click.argument("prefix", metavar="PREFIX"),
        click.argument("directory", type=_folder, metavar="DIRECTORY"),
    ):
        function = argument(function)
    return function


_overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace TEXT_FILE if it exists."
)
_without_bodies_option = click.option(
    "--without-bodies",
    is_flag=True,
    help="Go on where bodies of large messages cannot be had.",
)
_resume_option = click.option(
    "--resume", is_flag=True, help="Go on with an import that was interrupted."
)
_target_option = click.option(
    "--large-messages",
    "large",
    type=_folder,
    metavar="DIR",
    help=f"Where bodies of large messages go. Default: {FOLDER_NAME}, beside the journal.",
)
_json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")


# --- export --------------------------------------------------------------------------------------


@click.command("export-journal", short_help="Write a journal as text.")
@_five_arguments
@_overwrite_option
@large_option
@_without_bodies_option
@_json_option
def export_journal_command(
    directory: Path,
    prefix: str,
    extension: str,
    file_size: int,
    text_file: Path,
    overwrite: bool,
    large: Path | None,
    without_bodies: bool,
    is_json: bool,
) -> int:
    """Write the journal in DIRECTORY as text, a line for each record. Nothing in it is changed.

    PREFIX and EXTENSION are those of its files: `activemq-data hq` for messages,
    `activemq-bindings bindings` for queues and addresses. FILE_SIZE is their size; each file says
    its own, so another one is remarked upon and the export goes on. TEXT_FILE `-` is standard
    output. Bodies of large messages go to the folder TEXT_FILE.large-messages. Exit codes: 0 good,
    1 damaged.
    """
    form, other_sizes = form_of(directory, prefix, extension, Disk(), size_bytes=file_size)
    if other_sizes:
        sizes = ", ".join(map(str, other_sizes))
        terminal.show_sentence(f"there are files of {sizes} bytes; import with a size that fits")
    bodies = _Bodies(body_place(directory, large, Disk()), text_file, without_bodies)
    return _export(directory, form, text_file, bodies, is_overwritten=overwrite, is_json=is_json)


@click.command("export", short_help="Write a journal as text.")
@click.argument("folder", type=_folder, metavar="DIR")
@click.argument("text_file", type=_text, metavar="TEXT_FILE")
@_overwrite_option
@large_option
@_without_bodies_option
@_json_option
def export_command(
    folder: Path,
    text_file: Path,
    overwrite: bool,
    large: Path | None,
    without_bodies: bool,
    is_json: bool,
) -> int:
    """Write the journal in the folder DIR as text, a line for each record.

    Nothing in DIR is changed. TEXT_FILE `-` is standard output. Bodies of large messages go to the
    folder TEXT_FILE.large-messages. Exit codes: 0 good, 1 damaged.
    """
    found = journals_in(folder)
    if len(found) > 1:
        places = " or ".join(str(place) for place, _ in found)
        raise terminal.CommandFailed(f"{folder} holds several journals: name one, {places}")
    place, form = found[0]
    bodies = _Bodies(body_place(place, large, Disk()), text_file, without_bodies)
    return _export(place, form, text_file, bodies, is_overwritten=overwrite, is_json=is_json)


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Bodies of large messages on their way to or from the folder beside a text.

    Attributes:
        place: Where the journal's are.
        text_file: The text.
        may_be_missing: Whether the command goes on without those that cannot be had.
    """

    place: BodyPlace
    text_file: Path
    may_be_missing: bool

    @property
    def folder(self) -> Path:
        """The folder beside the text."""
        return self.text_file.with_name(f"{self.text_file.name}.{FOLDER_NAME}")

    def bring_out(self, live: LiveSet) -> CopiedBodies:
        """Copy what the journal needs to the folder beside the text."""
        if not live.bodies():
            return CopiedBodies()
        needed = live.bodies(self.place.queue_ids())  # others are gone with their queue
        copied = self._bring(needed, self.place.folder, self.folder)
        if str(self.text_file) != _STANDARD:
            write_names(needed, self.folder, Disk())
        return copied

    def bring_in(self, live: LiveSet) -> CopiedBodies:
        """Copy what the new journal needs from the folder beside the text."""
        names = read_names(self.folder, Disk())
        needed = [
            body
            for body in live.bodies()
            if names is None or body_name(body.reference.large_id) in names
        ]
        return self._bring(needed, self.folder, self.place.folder)

    def _bring(self, bodies: list[LiveBody], source: Path, target: Path) -> CopiedBodies:
        if bodies and str(self.text_file) == _STANDARD:
            if not self.may_be_missing:
                large = terminal.counted(
                    len(bodies),
                    "large message has a body, which goes",
                    "large messages have bodies, which go",
                )
                raise terminal.CommandFailed(
                    f"{large} to a folder beside the text: name a file, or give --without-bodies"
                )
            return CopiedBodies()
        copied = copy_bodies(bodies, source, target, Disk())
        if copied.lost and not self.may_be_missing:
            large = terminal.counted(
                len(bodies), "body of a large message", "bodies of large messages"
            )
            raise terminal.CommandFailed(
                f"{len(copied.lost)} of {large} cannot be had from {source}: {copied.lost[0]}. "
                "Put them there (an import then goes on with --resume), or give --without-bodies"
            )
        return copied


def _export(
    folder: Path,
    form: FileForm,
    text_file: Path,
    bodies: _Bodies,
    *,
    is_overwritten: bool,
    is_json: bool,
) -> int:
    total_bytes = sum(
        path.stat().st_size for path in folder.iterdir() if form.number(path.name) is not None
    )
    with (
        terminal.progress(f"reading {folder}, MiB", 2 * total_bytes // _MIB) as advance,
        _written(text_file, is_overwritten=is_overwritten) as text,
    ):
        report = export_journal(
            folder,
            form,
            text.write,
            disk=CountingDisk(progress_steps(advance, _MIB)),
            verify=OpeningParts().verify,
            bring_bodies=bodies.bring_out,
        )
    _show_export(report, text_file, is_json=is_json and str(text_file) != _STANDARD)
    return 0


def _show_export(report: ExportReport, text_file: Path, *, is_json: bool) -> None:
    if is_json:
        terminal.show_json({**terminal.json_fields(report), "textFile": str(text_file)})
        return
    end = (
        f"; the unconfirmed work at {report.torn_at} is left out, as a broker's start would"
        if report.torn_at
        else ""
    )
    records = terminal.counted(report.records, "record")
    sentence = (
        f"{report.folder}: {records} ({units.format_size_rounded(report.record_bytes)}) of "
        f"{terminal.counted(report.files, 'file')} "
        f"written to {'standard output' if str(text_file) == _STANDARD else text_file}{end}"
    )
    terminal.echo(sentence, err=str(text_file) == _STANDARD)
    if str(text_file) != _STANDARD:
        show_bodies(report.bodies)


@contextmanager
def _written(path: Path, *, is_overwritten: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when all of it is on the disk."""
    if str(path) == _STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not is_overwritten:
        raise terminal.CommandFailed(
            f"{path} exists: give another name, or --overwrite to replace it"
        )
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        Disk().flush_folder(path.parent)
    except BaseException as error:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        if isinstance(error, OSError) and not isinstance(error, VespiaryError):
            raise terminal.CommandFailed(f"{path} cannot be written: {error.strerror}") from error
        raise


# --- import --------------------------------------------------------------------------------------


@click.command("import-journal", short_help="Make a journal from text.")
@_five_arguments
@_resume_option
@_target_option
@_without_bodies_option
@_json_option
def import_journal_command(
    directory: Path,
    prefix: str,
    extension: str,
    file_size: int,
    text_file: Path,
    resume: bool,
    large: Path | None,
    without_bodies: bool,
    is_json: bool,
) -> int:
    """Make a journal in DIRECTORY, which is empty or new, from the text of `export-journal`.

    PREFIX, EXTENSION and FILE_SIZE are those of the files to make. TEXT_FILE `-` is standard input.
    A text that is cut off or damaged is refused with the number of the line, and nothing is left
    that a broker would take for a journal. Bodies of large messages are taken from the folder
    TEXT_FILE.large-messages. Exit codes: 0 good, 1 refused.
    """
    return _import(
        directory,
        prefix,
        extension,
        file_size,
        _Bodies(BodyPlace(large_folder_of(directory, large)), text_file, without_bodies),
        is_resumed=resume,
        is_json=is_json,
    )


@click.command("import", short_help="Make a journal from text.")
@click.argument("text_file", type=_text, metavar="TEXT_FILE")
@click.argument("folder", type=_folder, metavar="DIR")
@click.option("--prefix", metavar="PREFIX", help="Prefix of the files. Default: by kind.")
@click.option("--extension", metavar="EXT", help="Extension of the files. Default: by kind.")
@click.option("--file-size", type=SizeType(), help="Size of the files. Default: by kind.")
@_resume_option
@_target_option
@_without_bodies_option
@_json_option
def import_command(
    text_file: Path,
    folder: Path,
    prefix: str | None,
    extension: str | None,
    file_size: int | None,
    resume: bool,
    large: Path | None,
    without_bodies: bool,
    is_json: bool,
) -> int:
    """Make a journal in the folder DIR, which is empty or new, from an exported text.

    Bodies of large messages are taken from the folder TEXT_FILE.large-messages. Exit codes: 0 good,
    1 refused.
    """
    usual = _FORMS[_kind_of(text_file)]
    return _import(
        folder,
        prefix or usual[0],
        extension or usual[1],
        file_size or usual[2],
        _Bodies(BodyPlace(large_folder_of(folder, large)), text_file, without_bodies),
        is_resumed=resume,
        is_json=is_json,
    )


def _kind_of(text_file: Path) -> JournalKind:
    """Return the kind of journal that a text says; the import itself reads all of it again."""
    if str(text_file) == _STANDARD:
        raise click.UsageError("from standard input use `vespiary import-journal`")
    with _opened(text_file) as file:
        try:
            header = TextReader().read(file.readline(4096)).header
        except TextFormError as error:
            raise terminal.CommandFailed(f"{text_file} is no exported journal: {error}") from error
    assert header is not None
    return header.kind


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == _STANDARD:
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise terminal.CommandFailed(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield file


def _import(
    folder: Path,
    prefix: str,
    extension: str,
    file_size: int,
    bodies: _Bodies,
    *,
    is_resumed: bool,
    is_json: bool,
) -> int:
    text_file = bodies.text_file
    with _opened(text_file) as text:
        size = 0 if str(text_file) == _STANDARD else text_file.stat().st_size
        disk = Disk()
        disk.make_folder(folder)
        lock = FolderLock(folder)
        try:
            with terminal.progress(f"reading {text_file}, MiB", size // _MIB) as advance:
                report = JournalImport(
                    folder,
                    prefix,
                    extension,
                    file_size,
                    disk=disk,
                    verify=OpeningParts().verify,
                    is_resumed=is_resumed,
                    source_name=str(text_file),
                    bring_bodies=bodies.bring_in,
                    progress=progress_steps(advance, _MIB),
                ).run(text)
        finally:
            lock.close()
    _show_import(report, is_json=is_json)
    return 0


def _show_import(report: ImportReport, *, is_json: bool) -> None:
    if is_json:
        terminal.show_json(report)
        return
    before = f", {report.resumed_records} of them were there" if report.resumed_records else ""
    records = terminal.counted(report.records, "record")
    terminal.echo(
        f"{report.folder}: {records} in {terminal.counted(report.files, 'file')}{before}; "
        "a broker may start from it"
    )
    show_bodies(report.bodies)
