"""What Spark finds live in the files of a broker that was killed is what that broker then shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.recovery import Recovery
from vespiary_broker.store.survey import survey_folder
from vespiary_native.choice import block_verifier
from vespiary_pipeline.transform import live, queues
from vespiary_testkit.broker_calls import call, metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.journal_rows import RowSink, table
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.verify]
NAMES = ("orders", "letters")
SETTINGS = (
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "address-settings.orders.max-size-bytes=256KiB",
    "address-settings.orders.page-size-bytes=64KiB",
)


def rows_of(folder: Path, form: FileForm, journal: str) -> list[dict[str, Any]]:
    """Return what a recovery reads."""
    sink, disk = RowSink(journal), Disk()
    survey = survey_folder(folder, form, disk, is_direct=False)
    Recovery(survey, disk, block_verifier()).run(sink)
    return sink.rows


def load(broker: BrokerProcess) -> None:
    """Send, acknowledge, give back, transact and abort; leave much of it under way."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(1800):
            name = NAMES[number % 2]
            headers = {"destination": f"/queue/{name}", "persistent": "true"}
            if number % 9 == 0:
                peer.send("BEGIN", {"transaction": f"t{number}"})
            if number % 9 < 3:
                headers["transaction"] = f"t{number - number % 9}"
            if number % 100 == 99:
                headers["receipt"] = str(number)
            peer.send("SEND", headers, b"x" * 1000)
            if number % 9 == 2 and number % 4:
                peer.send("COMMIT", {"transaction": f"t{number - 2}"})
        peer.receive_receipt("1799")
        for name in NAMES:
            peer.send(
                "SUBSCRIBE",
                {"id": name, "destination": f"/queue/{name}", "ack": "client-individual"},
            )
        taken = peer.receive_messages(200)
        for number, message in enumerate(taken):
            command = "NACK" if number % 7 == 0 else "ACK"
            headers = {"id": message.get("ack") or ""}
            if number == len(taken) - 1:
                headers["receipt"] = "acked"
            peer.send(command, headers)
        peer.receive_receipt("acked")
        # Pages are made one after the other, and the journal names each before the next is begun.
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 2)
        headers = {"destination": "/queue/letters", "persistent": "true", "receipt": "paged"}
        peer.send("SEND", headers)
        peer.receive_receipt("paged")
        for _ in range(50):  # nobody waits for these
            peer.send("SEND", {"destination": "/queue/letters", "persistent": "true"}, b"y" * 3000)
        broker.kill()


def shown(broker: BrokerProcess, name: str) -> dict[int, int]:
    """Return the sequences of the messages in a queue, and how often each was given out."""
    found: dict[int, int] = {}
    after = ""
    while True:
        page = call(broker, "GET", f"/queues/{name}/messages?limit=200{after}")
        found |= {message["sequence"]: message["deliveries"] for message in page["items"]}
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def test_a_broker_that_was_killed(spark: SparkSession, tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data", *SETTINGS)
    broker.start()
    load(broker)
    shutil.copytree(broker.data, tmp_path / "copy")
    broker.start()
    try:
        held = {name: shown(broker, name) for name in NAMES}
    finally:
        assert broker.stop() == 0
    rows = rows_of(tmp_path / "copy/journal", MESSAGE_FORM, "message")
    rows += rows_of(tmp_path / "copy/bindings", BINDINGS_FORM, "bindings")
    records = spark.createDataFrame(table(rows))
    found = live(records, queues(records)).collect()
    assert {row["state"] for row in found} == {"live"}
    assert any(row["page_id"] for row in found)
    assert any(row["deliveries"] for row in found)
    for name in NAMES:
        ours = {row["sequence"]: row["deliveries"] for row in found if row["queue"] == name}
        assert ours.keys() == held[name].keys()
        for sequence, deliveries in ours.items():
            # What a PAGE record says of deliveries is in no column.
            assert deliveries in (held[name][sequence], None), (name, sequence)
