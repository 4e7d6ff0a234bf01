"""`vespiary-pipeline verify` says what the broker's own `vespiary journal verify` says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from vespiary_broker.cli.program import run_program
from vespiary_codec.journal.large_reference import body_name
from vespiary_codec.journal.record import AckRecord, AddRecord, CommitRecord, SequenceRange
from vespiary_pipeline.jobs import verifying
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.written_files import JournalWriter, large_message, message

pytestmark = pytest.mark.spark
FIRST = "journal/activemq-data-1.hq"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with several blocks, a transaction, a large message and pages."""
    path = tmp_path_factory.mktemp("verify") / "good"
    settings = (
        "min-large-message-size=20KiB", "address-settings.paged.max-size-bytes=256KiB",
        "address-settings.paged.page-size-bytes=64KiB", "journal-file-size=1MiB",
    )  # fmt: skip
    with BrokerProcess(path, *settings) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(8):
            send(peer, "/queue/orders", b"x" * 2000, receipt=str(number))
            peer.receive_receipt(str(number))
        peer.send("BEGIN", {"transaction": "t"})
        send(peer, "/queue/orders", b"member", transaction="t")
        send(peer, "/queue/prices", b"member", transaction="t")
        peer.send("COMMIT", {"transaction": "t", "receipt": "c"})
        peer.receive_receipt("c")
        send(peer, "/queue/orders", b"L" * 50_000, receipt="l")
        peer.receive_receipt("l")
        for number in range(80):
            send(peer, "/queue/paged", b"p" * 10_000, receipt=f"p{number}")
            peer.receive_receipt(f"p{number}")
        broker.kill()
    return path


def send(peer: StompPeer, to: str, body: bytes, **headers: str) -> None:
    peer.send("SEND", {"destination": to, "persistent": "true", **headers}, body)


@pytest.fixture
def verify(run: Any) -> Any:
    def invoke(code: int, *paths: Path) -> list[dict[str, Any]]:
        result = run("verify", "--json", *paths, code=code)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return invoke


def brokers_verdict(folder: Path) -> bool:
    """Return whether the broker's own tool finds the message journal undamaged."""
    return run_program(["journal", "verify", str(folder / "journal")]) == 0


def last_block(folder: Path) -> tuple[Path, int]:
    """Return where the payload of the journal's last block begins."""
    found = []
    for path in (folder / "journal").glob("*.hq"):
        data = path.read_bytes()
        found += [
            (int.from_bytes(data[at + 8 : at + 16], "little"), path, at + 64)
            for at in range(4096, len(data), 4096)
            if data[at : at + 4] == b"VBLK"
        ]
    return max(found)[1:]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.verify
def test_all_kinds_of_damage_are_found_at_once(verify: Any, good: Path, tmp_path: Path) -> None:
    home = tmp_path / "brokers"
    folders = {}
    names = ("block", "body", "footer", "good", "header", "missing", "padding", "page", "rest",
             "torn", "twice")  # fmt: skip
    for name in names:
        folders[name] = home / name
        shutil.copytree(good, folders[name])
    (home / "notes").mkdir()  # nothing of a broker
    flip(folders["block"] / FIRST, 4096 + 64 + 9)
    flip(*last_block(folders["torn"]))
    flip(folders["header"] / FIRST, 40)
    (body,) = (folders["body"] / "large-messages").rglob("*.msg")
    flip(body, body.stat().st_size - 10)
    page = max((folders["page"] / "paging").rglob("*.page"))
    flip(page, 4096 + 64 + 9)
    end = max((folders["footer"] / "paging").rglob("*.page"))
    flip(end, end.stat().st_size - 200)
    flip(folders["rest"] / FIRST, 700)
    flip(folders["padding"] / FIRST, 4096 + 4096 - 1)
    shutil.copy(folders["twice"] / FIRST, folders["twice"] / "journal/activemq-data-99.hq")
    (folders["missing"] / "bindings").rename(folders["missing"] / "away")
    found = verify(1, home)
    verdicts = {Path(one["folder"]).name: one["verdict"] for one in found}
    assert sorted(verdicts) == sorted(names)
    assert verdicts["good"] == verdicts["missing"] == "good"
    assert verdicts["block"] == verdicts["header"] == verdicts["body"] == "damaged"
    assert verdicts["page"] == verdicts["footer"] == verdicts["twice"] == "damaged"
    assert verdicts["rest"] == verdicts["padding"] == "damaged"
    for name, folder in folders.items():
        if name not in ("page", "footer"):
            assert brokers_verdict(folder) == (verdicts[name] != "damaged"), name
    damage = {Path(one["folder"]).name: one["damage"] for one in found}
    assert damage["block"][0]["path"].endswith(FIRST)
    assert "large" in damage["body"][0]["what"]


def test_good_journals_are_good(verify: Any, good: Path) -> None:
    (found,) = verify(0, good)
    assert (found["verdict"], found["damage"]) == ("good", [])
    assert found["records"] > 12
    assert found["files"] >= 3


def large(folder: Path, sequence: int, body: bytes) -> AddRecord:
    """Return a message of an address with a body that lies in the folder beside."""
    return large_message(folder / "large-messages", sequence, body)


def acknowledged(sequence: int) -> AckRecord:
    return AckRecord(1, (SequenceRange(sequence, 1),))


def a_copy(file_id: int) -> str:
    return f"activemq-data-2026112207180{file_id}-{file_id}.hq"


def test_what_a_broker_took_away_is_no_damage_and_what_cannot_be_read_is_none_either(
    verify: Any, tmp_path: Path
) -> None:
    home = tmp_path / "brokers"
    journals = {name: home / name for name in ("acked", "hidden", "locked", "lost")}
    for name, folder in journals.items():
        writer = JournalWriter(folder / "journal")
        records = [message(1), large(folder, 2, b"L" * 99)]
        writer.file(1, records, [acknowledged(2)] if name == "acked" else [acknowledged(1)])
        if name in ("acked", "lost"):
            (folder / "large-messages" / body_name(2)).unlink()
    hidden = journals["hidden"] / "large-messages" / body_name(2)
    hidden.unlink()
    hidden.mkdir()
    (journals["locked"] / "journal/activemq-data-2.hq").mkdir()

    copies = {name: home / name for name in ("copies", "flipped")}
    for folder in copies.values():
        writer = JournalWriter(folder)
        begin, end = message(1, transaction=5), CommitRecord(5, 2, 0)
        for file_id, records in enumerate(
            ([begin], [message(2), end], [large(folder, 3, b"L")]), 1
        ):
            writer.file(file_id, records, name=a_copy(file_id), is_sealed=True)
        (folder / a_copy(1)).unlink()  # with the member of the transaction
        shutil.rmtree(folder / "large-messages")  # it grew old
    flip(copies["flipped"] / a_copy(3), 4096 + 64 + 9)

    found = verify(1, home)
    verdicts = {Path(one["folder"]).name: one["verdict"] for one in found}
    assert verdicts == {
        "acked": "good",
        "copies": "good",
        "flipped": "damaged",
        "hidden": "unread",
        "locked": "unread",
        "lost": "damaged",
    }
    by_name = {Path(one["folder"]).name: one for one in found}
    (lost,) = by_name["lost"]["damage"]
    assert lost["path"].endswith(FIRST)
    assert lost["offset"] > 4096
    assert lost["what"].endswith("the body can't be read: No such file or directory")
    (flipped,) = by_name["flipped"]["damage"]
    assert (flipped["path"], flipped["offset"]) == (str(copies["flipped"] / a_copy(3)), 4096)
    assert by_name["copies"]["files"] == 2
    assert by_name["copies"]["size_bytes"] == 4 * 4096
    assert by_name["flipped"]["size_bytes"] == 2 * 4096
    (unread,) = by_name["locked"]["damage"]
    assert "has the name of a broker's file and is none" in unread["what"]


@pytest.mark.verify
def test_damage_that_is_found_while_copies_go_is_looked_for_again(
    verify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path)
    for file_id in (1, 2, 3):
        writer.file(file_id, [message(file_id)], name=a_copy(file_id), is_sealed=True)
    looked = verifying._looked
    looks: list[int] = []

    def removing(spark: SparkSession, folder: str, options: Any) -> verifying.Verified:
        found = looked(spark, folder, options)
        looks.append(found.files)
        if len(looks) < 2:
            (tmp_path / a_copy(1)).unlink()
            return found._replace(verdict="damaged", damage=(verifying.Damage("1", 1, "gone"),))
        return found

    monkeypatch.setattr(verifying, "_looked", removing)
    (found,) = verify(0, tmp_path)
    assert (found["verdict"], looks) == ("good", [3, 2])
