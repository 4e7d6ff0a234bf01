"""Places that can't be written and disks that are full: told early, and nothing to be seen."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vespiary_pipeline import cli, cli_common, targets
from vespiary_pipeline.imports.folder import Staging
from vespiary_pipeline.jobs.export_folder import ExportFolder, FolderSteps, Manifest
from vespiary_spec.errors import DiskFull, ExportRefused, NativeError
from vespiary_testkit.nobody import become_nobody, open_folder
from vespiary_testkit.written_files import JournalWriter, message


class RefusingSteps(FolderSteps):
    """Fails at one of its steps, as a disk does that is full or broken.

    Args:
        step: The step.
        number: The error's number.
    """

    def __init__(self, step: str, number: int) -> None:
        self._step = step
        self._number = number

    def _refuse(self, step: str) -> None:
        if step == self._step:
            raise OSError(self._number, os.strerror(self._number))

    def write(self, path: Path, data: bytes) -> None:
        self._refuse("write")
        super().write(path, data)

    def flush(self, path: Path) -> None:
        self._refuse("flush")
        super().flush(path)

    def rename(self, old: Path, new: Path) -> None:
        self._refuse("rename")
        super().rename(old, new)


def manifest(number: int) -> Manifest:
    return Manifest(
        number=number, made_at="2026-11-22T06:00:00+00:00", journal_id="0a" * 16, source="/data",
        content="messages", has_bodies=True, reached=1, scan_from=2, files=(),
    )  # fmt: skip


@pytest.mark.parametrize("step", ["write", "flush", "rename"])
@pytest.mark.parametrize(
    ("number", "kind", "cure"),
    [
        (errno.ENOSPC, DiskFull, "Free space, or export to another volume"),
        (errno.EDQUOT, DiskFull, "Free space, or export to another volume"),
        (errno.EROFS, NativeError, "Name a folder in which this user may write"),
        (errno.EIO, NativeError, "Look at the disk"),
    ],
)
def test_an_export_that_fails_at_its_end_is_not_to_be_seen(
    step: str, number: int, kind: type[Exception], cure: str, tmp_path: Path
) -> None:
    def export() -> None:
        with ExportFolder(tmp_path / "lake", RefusingSteps(step, number)).writing() as run:
            (run.staging / "address=a").mkdir(parents=True)
            run.publish(manifest(run.number))

    with pytest.raises(kind) as caught:
        export()
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/lake: ")
    assert cure in said
    left = sorted(path.name for path in (tmp_path / "lake").rglob("*"))
    assert left == ["_vespiary", "lock"]


def test_an_import_that_cannot_be_staged_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeError, match=r"file/new: the folder for the import can't be made.*L"):
        Staging(tmp_path / "file/new")


# --- before Spark takes its seconds ---------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli_common, "start_session", lambda: pytest.fail("Spark was started"))
    JournalWriter(tmp_path / "data/journal").file(1, [message(1)])
    return tmp_path / "data"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


COMMANDS = ("files", "live", "depth", "usage", "transactions", "report", "export", "import")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_target_below_a_file_is_told_before_spark_starts(command: str, data: Path) -> None:
    target = data.parent / "file/new"
    target.parent.write_text("")
    found = run(command, data, "--to", target, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["where"] == str(target)
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_target_on_no_file_system_is_no_folder_here(
    command: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    found = run(command, data, "--to", "s3a://bucket/x")
    assert found.exit_code == 1
    assert "no path of a file system (got s3a://bucket/x" in found.stderr
    assert os.listdir() == ["data"]  # noqa: PTH208


@pytest.mark.parametrize("command", ["files", "live", "depth", "usage", "transactions"])
def test_tables_are_written_into_new_folders_alone(command: str, data: Path) -> None:
    found = run(command, data, "--to", data)
    assert found.exit_code == 1
    assert f"{data}: something is there already. Name a new folder. [VSP-D102]" in found.stderr


def test_an_import_into_a_folder_that_holds_something_is_told(data: Path) -> None:
    found = run("import", data, "--to", data)
    assert f"{data}: an import needs an empty or a new folder" in found.stderr


def test_a_report_replaces_files_alone(data: Path) -> None:
    assert "Is a directory" in run("report", data, "--to", data).stderr
    assert "No such file or directory" in run("report", data, "--to", data / "none/x").stderr


def test_who_may_not_write_is_told() -> None:
    with open_folder() as folder:
        pid = os.fork()
        if pid == 0:
            become_nobody()
            told = 0
            for target in (targets.new_folder, targets.folder, targets.file):
                try:
                    target(str(folder / "new"))
                except NativeError as error:
                    told += "Name a folder in which this user may write" in str(error)
            os._exit(0 if told == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_can_be_written_is_taken(tmp_path: Path) -> None:
    assert targets.new_folder(f"file:{tmp_path}/a/b") == tmp_path / "a/b"
    assert targets.folder(str(tmp_path)) == tmp_path
    assert targets.file(str(tmp_path / "x.html")) == tmp_path / "x.html"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ExportRefused):
        targets.new_folder(str(tmp_path))
