"""`vespiary journal recover`: saves what can be saved of damaged journals, in a new folder.

Owns: the command, and what the bindings need so that a broker finds the queues of what was saved.
Must never write to the old folder. Called by `journals`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import (
    CountingDisk,
    body_place,
    journals_in,
    large_folder_of,
    large_option,
    progress_steps,
    queue_names,
    show_bodies,
    size_of,
)
from vespiary_broker.engine.queues import QUEUE_ID_COUNTER
from vespiary_broker.store.body_files import CopiedBodies, copy_bodies
from vespiary_broker.store.disk import Disk, DiskFile
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.salvage import SalvageReport, SalvageRules, salvage_journal
from vespiary_spec import limits

_MIB: Final = 1024 * 1024
_IDS_AT_ONCE: Final = 1024
"""Queue ids are reserved by the thousand: the newest reservation may be lost."""

_SIZES: Final = {MESSAGE_FORM: 10 * _MIB}


class SalvageDisk(Disk):
    """The real file system: the old folder can't be written, the new one can.

    Args:
        old: Writes go nowhere below it.
        reading: What reads there.
    """

    def __init__(self, old: Path, reading: CountingDisk) -> None:
        super().__init__()
        self._old = old.resolve()
        self._reading = reading

    def _refuse(self, path: Path) -> None:
        if path.resolve().is_relative_to(self._old):
            raise ValueError(f"{path}: the old folder is never written to")

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> Any:
        """Open a file; below the old folder for reading alone."""
        if is_readonly:
            return self._reading.open(path, is_direct=is_direct, is_readonly=True)
        self._refuse(path)
        return super().open(path, is_direct=is_direct, is_readonly=False)

    def create(self, path: Path, *, is_direct: bool) -> Any:
        """Make a file outside of the old folder."""
        self._refuse(path)
        file: DiskFile = super().create(path, is_direct=is_direct)
        return file

    def make_folder(self, folder: Path) -> None:
        """Make a folder outside of the old one."""
        self._refuse(folder)
        super().make_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file outside of the old folder."""
        self._refuse(old)
        self._refuse(new)
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file outside of the old folder."""
        self._refuse(path)
        super().remove(path)


@click.command("recover", short_help="Save what can be saved of damaged journals.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.argument("target", type=click.Path(file_okay=False, path_type=Path), metavar="NEW_DIR")
@click.option(
    "--include-acknowledged",
    is_flag=True,
    help="Also messages that were acknowledged and still stand somewhere (undelete).",
)
@click.option(
    "--include-uncommitted", is_flag=True, help="Also members of transactions without COMMIT."
)
@click.option(
    "--recreate-queues",
    is_flag=True,
    help="Make a queue recovered.ID for messages whose queue is in no binding.",
)
@large_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")
def recover_command(
    folder: Path,
    target: Path,
    large: Path | None,
    include_acknowledged: bool,
    include_uncommitted: bool,
    recreate_queues: bool,
    is_json: bool,
) -> int:
    """Copy all that can be read of the journals in DIR to new ones in NEW_DIR.

    DIR is never written to. With the data folder of a broker as DIR, NEW_DIR becomes one with the
    same folders, bindings and bodies of large messages included, and a broker starts from it. Exit
    codes: 0 nothing was lost, 1 something was.
    """
    found = journals_in(folder)
    if target.resolve().is_relative_to(folder.resolve()):
        raise click.UsageError("NEW_DIR must not lie in DIR")
    rules = SalvageRules(
        includes_acknowledged=include_acknowledged, includes_uncommitted=include_uncommitted
    )
    reports = []
    with terminal.progress(f"reading {folder}, MiB", 4 * size_of(found) // _MIB) as advance:
        disk = SalvageDisk(folder, CountingDisk(progress_steps(advance, _MIB)))
        needed = _Needs(is_recreating=recreate_queues)
        # Messages first: what they need of the bindings is known then.
        for place, form in sorted(found, key=lambda item: item[1] is not MESSAGE_FORM):
            new = target / place.relative_to(folder)
            bring = partial(_bring_bodies, disk, place, large, new, recreate_queues)
            report = _salvage(place, form, new, disk, rules, needed, bring)
            needed.note(report, form)
            reports.append(report)
    if is_json:
        terminal.show_json([_as_json(report) for report in reports])
    else:
        for report in reports:
            _show(report)
        needed.show()
    return int(any(r.losses or r.bodies.lost or r.left_in_pages for r in reports))


def _bring_bodies(
    disk: SalvageDisk,
    place: Path,
    large: Path | None,
    new: Path,
    is_recreating: bool,
    live: LiveSet,
) -> CopiedBodies:
    """Copy the bodies that messages of existing queues refer to beside the new journal."""
    known = body_place(place, large, disk)
    queue_ids = None if is_recreating else known.queue_ids()
    return copy_bodies(live.bodies(queue_ids), known.folder, large_folder_of(new, None), disk)


def _salvage(
    place: Path,
    form: FileForm,
    new: Path,
    disk: SalvageDisk,
    rules: SalvageRules,
    needed: _Needs,
    bring_bodies: Callable[[LiveSet], CopiedBodies],
) -> SalvageReport:
    is_bindings = form is BINDINGS_FORM
    return salvage_journal(
        place,
        form,
        new,
        disk=disk,
        verify=OpeningParts().verify,
        file_size_bytes=_SIZES.get(form, limits.BINDINGS_FILE_BYTES),
        rules=rules,
        complete=needed.complete if is_bindings else lambda _, __: {},
        bring_bodies=bring_bodies if form is MESSAGE_FORM else lambda _: CopiedBodies(),
    )


class _Needs:
    """What the bindings must hold so that a broker finds what was saved."""

    def __init__(self, *, is_recreating: bool) -> None:
        self._is_recreating = is_recreating
        self._live: dict[int, int] = {}
        self._highest_id = 0
        self._names: dict[int, str] = {}
        self._has_bindings = False

    def note(self, report: SalvageReport, form: FileForm) -> None:
        """Take what a saved journal holds."""
        if form is MESSAGE_FORM:
            self._live = report.live_messages
            self._highest_id = report.highest_queue_id
        elif form is BINDINGS_FORM:
            self._has_bindings = True
            self._names = queue_names(report.bindings)

    def complete(self, saved: dict[str, bytes], has_losses: bool) -> dict[str, bytes]:
        """Return the bindings to add: the counter of queue ids, and queues if that is wanted.

        Args:
            saved: What was saved, by key.
            has_losses: Something was not: a newer value of the counter may be among it.
        """
        known = queue_names(saved)
        counter = json.loads(saved.get(QUEUE_ID_COUNTER, b'{"next":1}'))["next"]
        highest = max([self._highest_id, *known])
        more: dict[str, bytes] = {}
        if counter <= highest or has_losses:
            safe = max(counter, highest + 1) + (_IDS_AT_ONCE if has_losses else 0)
            more[QUEUE_ID_COUNTER] = _encoded({"next": safe})
        if self._is_recreating:
            for number in self._live:
                if number not in known:
                    name = f"recovered.{number}"
                    value = {"name": name, "address": name, "routing-type": "ANYCAST"}
                    more[f"queue/{number}"] = _encoded({**value, "auto-created": False})
        return more

    def show(self) -> None:
        """Say which messages no broker would find."""
        orphans = {n: count for n, count in self._live.items() if n not in self._names}
        if not orphans:
            return
        numbers = ", ".join(f"{number}: {count}" for number, count in orphans.items())
        cure = (
            "their queues were deleted or their bindings lost; --recreate-queues makes queues"
            if self._has_bindings
            else "use the data folder as DIR, or put the broker's bindings beside this journal"
        )
        terminal.echo(f"messages by queue id that are in no binding: {numbers} ({cure})")


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _as_json(report: SalvageReport) -> dict[str, Any]:
    return {**terminal.json_fields(report), "bindings": sorted(report.bindings)}


def _show(report: SalvageReport) -> None:
    saved = (
        terminal.counted(len(report.bindings), "binding")
        if report.kind != MESSAGE_FORM.kind.name
        else terminal.counted(sum(report.live_messages.values()), "message")
    )
    blocks_read = terminal.counted(report.blocks, "block")
    files_read = terminal.counted(report.files_read, "file")
    terminal.echo(
        f"{report.folder}: {saved} saved in {report.target}, from {blocks_read} of {files_read}; "
        f"{terminal.counted(len(report.losses), 'place')} lost"
    )
    for loss in report.losses:
        count = loss.last_sequence - loss.first_sequence + 1
        blocks = (
            f"block {loss.first_sequence}"
            if loss.first_sequence and count == 1
            else f"blocks {loss.first_sequence} to {loss.last_sequence}"
            if loss.first_sequence and count > 1
            else f"from block {loss.first_sequence}"
            if loss.first_sequence
            else "blocks not known"
        )
        terminal.echo(f"  lost: {loss.file}:{loss.offset} to {loss.end}, {blocks}: {loss.what}")
    if report.losses and report.kind == MESSAGE_FORM.kind.name:
        terminal.echo("  acknowledgements may be among what was lost: such messages come again")
    for number, count in report.uncommitted.items():
        terminal.echo(f"  transaction {number} without COMMIT: {terminal.counted(count, 'member')}")
    for number in report.incomplete:
        terminal.echo(f"  transaction {number} was committed, and members of it are missing")
    for number in report.prepared:
        terminal.echo(f"  transaction {number} is prepared and was copied as it is")
    if report.left_in_pages:
        left = terminal.counted(
            report.left_in_pages,
            "message stands in page files alone and was not saved",
            "messages stand in page files alone and were not saved",
        )
        terminal.echo(f"  {left}: `vespiary page print` shows what is in them")
    show_bodies(report.bodies)
