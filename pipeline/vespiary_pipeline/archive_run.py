"""`python -m vespiary_pipeline.archive_run`: one run of a JournalArchive, in a pod.

Owns: which command line a run stands for, and the result that it leaves as a file, the container's
termination message. Must never know how a job works: that is the command line's.
Called by: the Job that the operator makes.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from vespiary_codec.journal.file_forms import copy_parts
from vespiary_pipeline import cli
from vespiary_pipeline.named_user import name_user
from vespiary_spec.archive_status import RunResult, encode
from vespiary_spec.archives import ArchiveJob

_WHAT_CHARACTERS: Final = 180
_CURE_OF_COPIES: Final = (
    "Look at the disk; replays and exports stop at a damaged copy: put it back from a backup, or "
    "move it out of the folder."
)
_CURE_OF_SNAPSHOT: Final = "Look at the disk, and do not go back to this snapshot: take another."


class _Copied(io.TextIOBase):
    """Standard output, with its last line kept.

    Args:
        out: Where everything goes as well.
    """

    def __init__(self, out: Any) -> None:
        self._out = out
        self._rest = ""
        self.last = ""

    def write(self, text: str) -> int:
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        for line in filter(str.strip, lines):
            self.last = line
        self._out.write(text)
        return len(text)

    def flush(self) -> None:
        self._out.flush()


def has_copies(folder: Path) -> bool:
    """Return whether a broker has kept a copy of a journal file in a folder yet."""
    with contextlib.suppress(OSError):
        return any(copy_parts(entry.name) for entry in folder.iterdir())
    return True  # what is wrong with it, the job says


def result_of(job: ArchiveJob, code: int, line: str, *, is_snapshot: bool = False) -> RunResult:
    """Return the result of a job.

    Args:
        job: What was done.
        code: The exit code of its command.
        line: The last line that it printed, an object.
        is_snapshot: Whether a snapshot was read, and not kept copies.
    """
    try:
        said = json.loads(line)
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    if "verdict" in said:
        return _of_verification(said, _CURE_OF_SNAPSHOT if is_snapshot else _CURE_OF_COPIES)
    if code or said.get("event") == "error":
        why = said.get("message") or f"{job.value} ended with exit code {code}."
        return RunResult(is_good=False, message=str(why))
    rows, size, files = (int(said.get(name) or 0) for name in ("messages", "size_bytes", "files"))
    message = "Nothing was new."
    if said.get("export"):
        message = f"{rows} messages were written in {files} files ({size} B)."
        if missing := int(said.get("bodies_missing") or 0):
            message += f" {missing} of them have no body: it is too large, lost or damaged."
    return RunResult(is_good=True, message=message, rows=rows, size_bytes=size, files=files)


def _of_verification(said: dict[str, Any], cure: str) -> RunResult:
    """Return the result of a verification of one folder.

    Args:
        said: What its command said of the folder.
        cure: What to do about damage.
    """
    from vespiary_pipeline.jobs.verifying import TORN, UNREAD, Damage

    found = [Damage(**one) for one in said["damage"]]
    if said["verdict"] == UNREAD:
        return RunResult(is_good=False, message=f"It could not look: {found[0].what}")
    rows, size, files = said["records"], said["size_bytes"], said["files"]
    looked = f"{rows} records in {files} files ({size} B) were looked at"
    message = f"{looked}, and nothing is damaged."
    if said["verdict"] == TORN:
        message += " What is torn off at the end was never confirmed."
    if found:
        count = "1 damage was" if len(found) == 1 else f"{len(found)} damages were"
        message = (
            f"{count} found, the first at {found[0].place}: {_cut(found[0].what)} {cure} "
            f"The log of the run's pod has all that was found; {looked}."
        )
    return RunResult(
        is_good=not found,
        message=message,
        rows=rows,
        size_bytes=size,
        files=files,
        damages=len(found),
    )


def _cut(text: str) -> str:
    """Return as much of a sentence as leaves room for what follows it."""
    text = text.rstrip(".")
    return f"{text[:_WHAT_CHARACTERS]}…" if len(text) > _WHAT_CHARACTERS else f"{text}."


def _template_settings(executor_pod: str) -> list[str]:
    """Write the template of executor pods where Spark reads it; return the setting that says so."""
    if not executor_pod:
        return []
    path = Path(tempfile.gettempdir()) / "executor-pod.json"
    path.write_text(executor_pod, "utf-8")
    return [f"spark.kubernetes.executor.podTemplateFile={path}"]


def run_command(arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command line of `vespiary-pipeline`; return its exit code and its last line."""
    copied = _Copied(sys.stdout)
    code: Any = 0
    with contextlib.redirect_stdout(copied):
        try:
            cli.main.main(args=list(arguments), prog_name="vespiary-pipeline")
        except SystemExit as end:
            code = end.code
    return (code if isinstance(code, int) else int(code is not None)), copied.last


@click.command()
@click.argument("job", type=click.Choice([job.value for job in ArchiveJob]))
@click.option("--data", required=True, help="Folder with a broker's volumes.")
@click.option("--retention", default="", help="Read the copies in this folder.")
@click.option("--snapshot", default="", help="Read the snapshot of this name.")
@click.option("--to", "target", default="", help="Folder of exports.")
@click.option("--result-file", required=True, help="Where the result goes.")
@click.option("--conf", "settings", multiple=True, help="A setting of Spark.")
@click.option("--executor-pod", default="", help="Template of executor pods, as JSON.")
def main(
    job: str,
    data: str,
    retention: str,
    snapshot: str,
    target: str,
    result_file: str,
    settings: tuple[str, ...],
    executor_pod: str,
) -> None:
    """Run a job over the volumes of one broker, and leave its result in a file."""
    if retention and not has_copies(Path(retention)):
        found = RunResult(
            is_good=True,
            message="No journal file was full yet, so there is no copy to read.",
            rows=0,
            size_bytes=0,
            files=0,
            damages=0 if job == ArchiveJob.VERIFY else None,
        )
    else:
        name_user(Path(tempfile.gettempdir()))
        given = [*settings, *_template_settings(executor_pod)]
        arguments = [part for setting in given for part in ("--conf", setting)]
        arguments += [job, retention or data, "--json"]
        arguments += ["--snapshot", snapshot] if snapshot else []
        arguments += ["--to", target] if target else []
        code, line = run_command(arguments)
        found = result_of(ArchiveJob(job), code, line, is_snapshot=bool(snapshot))
    Path(result_file).write_bytes(encode(found))
    click.echo(found.message, err=True)
    sys.exit(0 if found.is_good else 1)


if __name__ == "__main__":
    main()
