"""Export and import with a real broker: what it wrote becomes text, and a broker starts from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_messages import take_messages

PROGRAM = [sys.executable, "-m", "vespiary_broker"]
FIVE = {"journal": ("activemq-data", "hq"), "bindings": ("activemq-bindings", "bindings")}


def vespiary(
    *arguments: object, standard_input: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, timeout=60, input=standard_input
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a broker that got six messages and gave two of them away."""
    folder = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(folder, "journal-file-size=1MiB") as broker:
        place = f"stomp://127.0.0.1:{broker.port()}"
        for number in range(6):
            done = vespiary("send", "orders", f"order-{number}", "--url", place)
            assert done.returncode == 0, done.stderr
        done = vespiary("receive", "orders", "-n", "2", "--url", place)
        assert done.returncode == 0, done.stderr
    return folder


LARGE = "x" * 300_000


@pytest.fixture(scope="module")
def large_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a broker with two large messages, and of a third whose queue is gone."""
    folder = tmp_path_factory.mktemp("large") / "data"
    text = folder.parent / "body.txt"
    text.write_text(LARGE)
    with BrokerProcess(folder, "journal-file-size=1MiB") as broker:
        place = f"stomp://127.0.0.1:{broker.port()}"
        for queue in ("orders", "orders", "gone"):
            done = vespiary("send", queue, "--file", text, "--url", place)
            assert done.returncode == 0, done.stderr
        done = vespiary(
            "queue",
            "delete",
            "gone",
            "--force",
            "-y",
            "--api",
            f"http://127.0.0.1:{broker.port('http')}",
        )
        assert done.returncode == 0, done.stderr
    assert len(list((folder / "large-messages").iterdir())) == 2
    return folder


@pytest.mark.ci
def test_bodies_of_large_messages_travel_with_the_text(large_data: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    for kind in FIVE:
        text = exported(large_data, kind, tmp_path / f"{kind}.txt")
        done = vespiary("import-journal", copy / kind, *FIVE[kind], "1MiB", text)
        assert done.returncode == 0, done.stderr
    assert "2 bodies of large messages" in vespiary("journal", "verify", copy).stdout
    with BrokerProcess(copy, "journal-file-size=1MiB") as broker:
        assert take_messages(broker.port(), "orders", 2) == [LARGE] * 2


@pytest.mark.ci
def test_without_their_bodies_large_messages_are_refused_by_number(
    large_data: Path, tmp_path: Path
):
    text = exported(large_data, "journal", tmp_path / "journal.txt")
    beside = tmp_path / "journal.txt.large-messages"
    saved = beside.rename(tmp_path / "elsewhere")
    five = (tmp_path / "copy" / "journal", *FIVE["journal"], "1MiB", text)
    done = vespiary("import-journal", *five)
    assert done.returncode == 1
    assert "3 of 3 bodies" in done.stderr, "which queues are gone stood in the folder"
    assert not list((tmp_path / "copy" / "journal").glob("*.hq")), "no broker starts from it"
    saved.rename(beside)
    done = vespiary("import-journal", *five, "--resume", "--without-bodies")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "copy" / "large-messages").iterdir())) == 2
    done = vespiary("export-journal", large_data / "journal", *FIVE["journal"], "1MiB", "-")
    assert done.returncode == 1
    assert "2 large messages have bodies" in done.stderr
    assert "#Totals" not in done.stdout


@pytest.mark.ci
def test_recover_brings_the_bodies_and_names_those_that_are_lost(large_data: Path, tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(large_data, damaged)
    first, second = sorted((damaged / "large-messages").iterdir())
    done = vespiary("journal", "recover", damaged, tmp_path / "saved")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 bodies of large messages (586 KiB)" in done.stdout
    assert "2 bodies" in vespiary("journal", "verify", tmp_path / "saved").stdout
    first.unlink()
    second.write_bytes(b"y" + second.read_bytes()[1:])
    done = vespiary("journal", "verify", damaged)
    assert done.returncode == 1
    assert f"{first.name}: body: the body of message 1 of queue 1: the file is missing" in (
        done.stdout
    )
    assert f"{second.name}: body: the body of message 2 of queue 1: the file has the checksum" in (
        done.stdout
    )
    done = vespiary("journal", "recover", damaged, tmp_path / "less")
    assert done.returncode == 1
    assert f"lost: {first.name} of message 1 in queue 1: the file is missing" in done.stdout
    assert not (tmp_path / "less" / "large-messages").exists() or not list(
        (tmp_path / "less" / "large-messages").iterdir()
    )


def exported(data: Path, kind: str, text: Path) -> Path:
    before = contents(data)
    done = vespiary("export-journal", data / kind, *FIVE[kind], "1MiB", text)
    assert done.returncode == 0, done.stderr
    assert "records" in done.stdout
    assert contents(data) == before
    return text


@pytest.mark.ci
def test_a_broker_starts_from_what_was_exported_and_imported(data: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    for kind in FIVE:
        text = exported(data, kind, tmp_path / f"{kind}.txt")
        done = vespiary("import-journal", copy / kind, *FIVE[kind], "1MiB", text)
        assert done.returncode == 0, done.stderr
    with BrokerProcess(copy, "journal-file-size=1MiB") as broker:
        kept = take_messages(broker.port(), "orders", 4)
        assert kept == [f"order-{number}" for number in range(2, 6)]
    assert vespiary("journal", "verify", copy).returncode == 0


@pytest.mark.ci
def test_the_commands_of_the_journal_group(data: Path, tmp_path: Path):
    before = contents(data)
    text = tmp_path / "text"
    done = vespiary("journal", "export", data, text)
    assert done.returncode == 1
    assert "several journals" in done.stderr
    done = vespiary("journal", "export", data / "journal", text, "--json")
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, "MESSAGE")
    done = vespiary("journal", "export", data / "journal", text)
    assert done.returncode == 1
    assert "--overwrite" in done.stderr
    again = vespiary("journal", "export", data / "journal", text, "--overwrite")
    assert again.returncode == 0, again.stderr
    done = vespiary("journal", "import", text, tmp_path / "new", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["kind"], report["files"]) == (0, "MESSAGE", 1)
    assert (tmp_path / "new/activemq-data-1.hq").stat().st_size == 10 * 1024 * 1024
    assert contents(data) == before


@pytest.mark.ci
def test_through_a_pipe(data: Path, tmp_path: Path):
    done = vespiary("export-journal", data / "journal", *FIVE["journal"], "1MiB", "-")
    assert done.returncode == 0, done.stderr
    assert "records" in done.stderr
    five = (*FIVE["journal"], "65536", "-")
    back = vespiary("import-journal", tmp_path / "new", *five, standard_input=done.stdout.encode())
    assert back.returncode == 0, back.stderr
    assert vespiary("journal", "verify", tmp_path / "new").returncode == 0


@pytest.mark.ci
def test_a_text_that_is_cut_off(data: Path, tmp_path: Path):
    text = exported(data, "journal", tmp_path / "text")
    whole = text.read_bytes()
    text.write_bytes(whole[: whole.rindex(b"#Totals")])
    five = (*FIVE["journal"], "64KiB", text)
    done = vespiary("import-journal", tmp_path / "new", *five)
    assert done.returncode == 1
    lines = whole.count(b"\n")
    assert f"{text}:{lines}: the text ends too early" in done.stderr
    assert "VSP-J120" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "new").glob("*.hq"))
    done = vespiary("journal", "info", tmp_path / "new")
    assert (done.returncode, "holds no journal" in done.stderr) == (1, True)
    text.write_bytes(whole)
    done = vespiary("import-journal", tmp_path / "new", *five, "--resume")
    assert done.returncode == 0, done.stderr
    assert "a broker may start from it" in done.stdout
    assert not (tmp_path / "new/import.unfinished").exists()


def test_a_damaged_journal_gives_no_text(data: Path, tmp_path: Path):
    folder = tmp_path / "bad"
    folder.mkdir()
    for path in (data / "journal").glob("*.hq"):
        (folder / path.name).write_bytes(path.read_bytes())
    with (folder / "activemq-data-1.hq").open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff\x00\xff", 4096 + 80)
    text = tmp_path / "text"
    done = vespiary("export-journal", folder, *FIVE["journal"], "1MiB", text)
    assert done.returncode == 1
    assert "activemq-data-1.hq:4096" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if "text" in path.name] == []


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({3: "1000"}, 2, "a multiple of 4096 bytes"),
        ({1: "other"}, 1, "no journal file other-1.hq"),
        ({0: "missing"}, 1, "no journal file activemq-data-1.hq"),
        ({3: "10MiB"}, 0, "there are files of 1048576 bytes"),
    ],
)
def test_wrong_arguments(data: Path, tmp_path: Path, change: dict[int, str], code: int, said: str):
    arguments: list[object] = [data / "journal", *FIVE["journal"], "1MiB", tmp_path / "text"]
    for index, value in change.items():
        arguments[index] = value
    done = vespiary("export-journal", *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
