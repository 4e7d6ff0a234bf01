"""Every parameter of the journal's chapter that works, by what it does to a real broker.

One test for each, marked with its name; the last test looks that none is missing. What another file
shows better is listed there with the place.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.app.broker import BrokerApp
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.file_header import decode_file_header
from vespiary_native.ring import open_ring
from vespiary_spec import configuration
from vespiary_spec.model import Spelling, fields_of
from vespiary_spec.refusals import refused_names
from vespiary_spec.settings import BrokerSettings
from vespiary_testkit import product_loop
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.faulty_ring import FaultyRing
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

MIB = 1024 * 1024
TESTS = Path(__file__).resolve().parents[1]
SHOWN: set[str] = set()


def shows(*names: str) -> Callable[[Any], Any]:
    """Mark a test as the one that shows what these parameters do."""
    SHOWN.update(names)
    return lambda test: test


def fill(port: int, count: int, size_bytes: int = 100, queue: str = "/queue/q") -> None:
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(count):
            headers = {"destination": queue, "persistent": "true", "receipt": str(number)}
            peer.send("SEND", headers, bytes(size_bytes))
            if number % 50 == 49 or number == count - 1:
                peer.receive_receipt(str(number))


def drain(port: int, count: int, queue: str = "/queue/q") -> None:
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": queue, "ack": "client"})
        messages = peer.receive_messages(count)
        peer.send("ACK", {"id": messages[-1].get("ack", ""), "receipt": "done"})
        peer.receive_receipt("done")


def journal(broker: BrokerProcess) -> dict[str, Any]:
    """Return what the API says of the journal."""
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/journal"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def files(folder: Path, pattern: str = "activemq-data-*.hq") -> list[Path]:
    return sorted(folder.glob(pattern))


def refusal(data: Path, *settings: str) -> str:
    """Start a broker that must refuse; return what it said."""
    broker = BrokerProcess(data, *settings)
    with pytest.raises(AssertionError, match=r"ended with [12] before"):
        broker.start()
    return broker.log_text()


# --- where ---------------------------------------------------------------------------------------


@shows("persistence-enabled")
def test_without_persistence_nothing_reaches_the_disk(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "persistence-enabled=false") as broker:
        assert broker.ready["durability"] == "D0"
        fill(broker.port(), 10)
        drain(broker.port(), 10)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


@pytest.mark.engine
@shows("data-directory", "bindings-directory", "journal-directory")
def test_each_journal_has_its_own_folder(tmp_path: Path):
    own = [
        f"bindings-directory={tmp_path}/one/b",
        f"journal-directory={tmp_path}/two/j",
    ]
    with BrokerProcess(tmp_path / "data", *own) as broker:
        fill(broker.port(), 1)
    assert files(tmp_path / "one/b", "activemq-bindings-*.bindings")
    assert files(tmp_path / "two/j")
    assert not (tmp_path / "data/bindings").exists()
    assert not (tmp_path / "data/journal").exists()


@pytest.mark.ci
@shows("create-bindings-dir", "create-journal-dir")
@pytest.mark.parametrize("name", ["bindings", "journal"])
def test_folders_are_made_only_where_that_is_wanted(tmp_path: Path, name: str):
    data = tmp_path / "data"
    for folder in ("bindings", "journal", "paging", "large-messages"):
        (data / folder).mkdir(parents=True)
    (data / name).rmdir()
    text = refusal(data, f"create-{name}-dir=false")
    assert str(data / name) in text
    assert not (data / name).exists()
    (data / name).mkdir()
    with BrokerProcess(data, f"create-{name}-dir=false"):
        pass


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.ci
@shows("journal-file-size")
def test_new_files_have_the_size_and_old_ones_keep_theirs(tmp_path: Path):
    folder = tmp_path / "data/journal"
    with BrokerProcess(tmp_path / "data", "journal-file-size=1MiB") as broker:
        fill(broker.port(), 30, 100_000)
    small = {path.name for path in files(folder)}
    assert {path.stat().st_size for path in files(folder)} == {MIB}
    with BrokerProcess(tmp_path / "data", "journal-file-size=2MiB") as broker:
        fill(broker.port(), 60, 100_000)
        drain(broker.port(), 90)
    by_size = {path.name: path.stat().st_size for path in files(folder)}
    assert set(by_size.values()) == {MIB, 2 * MIB}
    assert small & {name for name, size in by_size.items() if size == MIB}


@shows("journal-min-files")
@pytest.mark.parametrize("count", [2, 7])
def test_the_floor_of_files(tmp_path: Path, count: int):
    options = ["journal-file-size=1MiB", "journal-preallocation-scope=entire-journal"]
    with BrokerProcess(tmp_path / "data", f"journal-min-files={count}", *options):
        at_ready = len(files(tmp_path / "data/journal"))
    assert at_ready >= count
    assert at_ready <= count + 3, "two files ahead and the reserve"


@pytest.mark.ci
@shows("journal-pool-files")
@pytest.mark.parametrize(("pool", "is_kept"), [(-1, True), (2, False)])
def test_free_files_beyond_the_pool_are_deleted(tmp_path: Path, pool: int, is_kept: bool):
    options = ["journal-file-size=1MiB", f"journal-pool-files={pool}"]
    with BrokerProcess(tmp_path / "data", *options) as broker:
        fill(broker.port(), 150, 100_000)
        # The files of the messages, and one ahead of them, which a slow disk makes later.
        wait_for(lambda: len(files(tmp_path / "data/journal")) > 15)
        most = len(files(tmp_path / "data/journal"))
        drain(broker.port(), 150)
        wait_for(lambda: journal(broker)["filesReclaimed"] >= 10)
        wait_for(lambda: (journal(broker)["files"]["free"] > 2) is is_kept)
        wait_for(lambda: (len(files(tmp_path / "data/journal")) >= most) is is_kept)


@pytest.mark.ci
@shows("journal-preallocation-strategy")
@pytest.mark.parametrize("strategy", ["zeros", "chunked-zeros", "os-kernel-copy", "sparse-file"])
def test_the_strategy_decides_who_pays_for_the_blocks(tmp_path: Path, strategy: str):
    option = f"journal-preallocation-strategy={strategy}"
    with BrokerProcess(tmp_path / "data", option) as broker:
        wait_for(lambda: journal(broker)["files"]["ahead"] >= 2)
        fill(broker.port(), 20)
        assert journal(broker)["preallocationFallbacks"] == 0
        broker.kill()
        broker.start()
        drain(broker.port(), 20)
    last = files(tmp_path / "data/journal")[-1].stat()
    assert last.st_size == 10 * 1024 * 1024
    assert (last.st_blocks * 512 >= last.st_size) is (strategy != "sparse-file")


@pytest.mark.engine
@shows("journal-preallocation-scope")
def test_without_preallocation_files_grow_and_survive(tmp_path: Path):
    option = "journal-preallocation-scope=none"
    with BrokerProcess(tmp_path / "data", option, "journal-file-size=1MiB") as broker:
        fill(broker.port(), 150, 10_000)
        # One that is full, the one in use, one made ahead of need.
        wait_for(lambda: len({p.stat().st_size for p in files(tmp_path / "data/journal")}) > 2)
        broker.kill()
        found = files(tmp_path / "data/journal")
        headers = [decode_file_header(path.read_bytes()[:512]) for path in found]
        assert all(header and header.is_growing for header in headers)
        assert len({path.stat().st_size for path in found}) > 2
        broker.start()
        drain(broker.port(), 150)


@pytest.mark.ci
@shows("journal-max-attic-files")
@pytest.mark.parametrize(("limit", "moved"), [(10, 2), (1, 1), (0, 0)])
def test_unfinished_files_with_content_go_to_the_attic(tmp_path: Path, limit: int, moved: int):
    folder = tmp_path / "data/journal"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"activemq-data-{number}.hq.tmp").write_text(f"somebody's {number}")
    (folder / "activemq-data-3.hq.tmp").write_bytes(bytes(100_000))
    with BrokerProcess(tmp_path / "data", f"journal-max-attic-files={limit}") as broker:
        fill(broker.port(), 5)
    kept = files(folder / "attic", "*") + files(folder, "*.tmp")
    assert sorted(path.read_text() for path in kept) == ["somebody's 1", "somebody's 2"]
    assert len(files(folder / "attic", "*")) == moved


# --- writes --------------------------------------------------------------------------------------


def options_of(folder: Path, *settings: str) -> Any:
    """Return the journal's options as the broker makes them of its settings."""
    given = configuration.from_plain({}, list(settings))
    return BrokerApp(given, base=folder)._journal_options(folder / "journal")


@pytest.mark.engine
@shows("journal-max-io")
@pytest.mark.parametrize(
    ("engine", "setting", "depth"),
    [("ASYNCIO", "37", 37), ("ASYNCIO", None, 500), ("NIO", "300", 300)],
)
def test_the_ring_has_the_depth(tmp_path: Path, engine: str, setting: str | None, depth: int):
    settings = [f"journal-type={engine}", "global-max-size=32MiB"]
    settings += [f"journal-max-io={setting}"] if setting else []

    async def opened() -> tuple[str, int]:
        found = await MessageJournal.open(options_of(tmp_path, *settings))
        ring = found._ring
        await found.close()
        return ring.name, ring.depth

    name, found = product_loop.run(opened())
    if name != engine:
        pytest.skip(f"{engine} can't be had here: {name} is used")
    assert found == depth


@shows("journal-buffer-size")
def test_a_record_has_a_limit(tmp_path: Path):
    sizes = {}
    bodies = [f"acceptors.{name}.stomp.max-body-size=16KiB" for name in ("all", "stomp")]

    async def live() -> None:
        for setting in ("32KiB", "64KiB"):
            options = options_of(
                tmp_path, "global-max-size=32MiB", f"journal-buffer-size={setting}", *bodies
            )
            opened = await MessageJournal.open(options, queue_ids=[1])
            route = opened.core.open_route([1])
            for size in range(16 * 1024, 80 * 1024, 1024):
                try:
                    opened.core.publish(route, b"", bytes(size), persistent=True)
                except ValueError:
                    break
                sizes[setting] = size
            await opened.close()

    product_loop.run(live())
    assert sizes["32KiB"] == 31 * 1024, "the record's own fields take some of it"
    assert sizes["64KiB"] == 63 * 1024


@pytest.mark.engine
@shows("journal-datasync", "journal-sync-transactional", "journal-sync-non-transactional")
@pytest.mark.parametrize(
    ("settings", "durability"),
    [
        ((), "D2"),
        (("journal-datasync=false",), "D1"),
        (("journal-sync-transactional=false", "journal-sync-non-transactional=false"), "D1"),
        # All confirms wait for one write, so one of the two alone leaves no flush out.
        (("journal-sync-transactional=false",), "D2"),
        (("journal-sync-non-transactional=false",), "D2"),
    ],
)
def test_flushes_are_left_out_only_where_that_was_chosen(tmp_path: Path, settings, durability):
    rings: list[FaultyRing] = []

    def recording(*args: Any, **names: Any) -> Any:
        ring, reason = open_ring(*args, **names)
        rings.append(FaultyRing(ring))
        return rings[-1], reason

    async def live() -> None:
        sizes = ("global-max-size=32MiB", "max-disk-usage=100")
        opened = await MessageJournal.open(
            options_of(tmp_path, *sizes, *settings),
            queue_ids=[1],
            parts=OpeningParts(open_ring=recording),
        )
        assert opened.durability == durability
        route = opened.core.open_route([1])
        for _ in range(5):
            opened.core.publish(route, b"", b"body", persistent=True)
            await opened.wait_durable()
        await opened.close()

    product_loop.run(live())
    assert len(rings[0].durable_flags) >= 5
    assert set(rings[0].durable_flags) == {durability == "D2"}


@shows("journal-device-block-size")
def test_a_unit_that_does_not_divide_a_block_is_refused(tmp_path: Path):
    text = refusal(tmp_path / "data", "journal-device-block-size=1536")
    assert "512, 1024, 2048 or 4096" in text
    with BrokerProcess(tmp_path / "data", "journal-device-block-size=4096") as broker:
        fill(broker.port(), 1)


@pytest.mark.ci
@shows("log-journal-write-rate")
@pytest.mark.parametrize("is_on", [True, False])
def test_rates_are_logged_where_that_is_wanted(tmp_path: Path, is_on: bool):
    broker = BrokerProcess(tmp_path / "data", f"log-journal-write-rate={str(is_on).lower()}")
    with broker:
        fill(broker.port(), 20)
        if is_on:
            wait_for(lambda: "writes/s=" in broker.log_text())
        else:
            time.sleep(1.2)
    lines = [line for line in broker.log_text().splitlines() if "writes/s=" in line]
    assert bool(lines) is is_on
    for line in lines:
        assert re.search(r"flushes/s=\d+ records/s=\d+ bytes/s=\d+ records/write=[\d.]+", line)


# --- the lock ------------------------------------------------------------------------------------


def second(data: Path, log: Path, *settings: str) -> subprocess.Popen[str]:
    """Start another broker on a folder, without waiting for it."""
    command = [sys.executable, "-m", "vespiary_broker", "run", "--json", "--port", "0"]
    command += ["--data", str(data)]
    for setting in ("max-disk-usage=100", *settings):
        command += ["--set", setting]
    with log.open("w") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


@pytest.mark.ci
@shows("journal-lock-acquisition-timeout")
@pytest.mark.parametrize(("timeout_ms", "least_s"), [(0, 0.0), (400, 0.4)])
def test_waiting_for_a_folder_has_a_bound(tmp_path: Path, timeout_ms: int, least_s: float):
    with BrokerProcess(tmp_path / "data") as broker:
        begin_s = time.monotonic()
        setting = f"journal-lock-acquisition-timeout={timeout_ms}"
        with second(tmp_path / "data", tmp_path / "log", setting) as other:
            other.communicate(timeout=WAIT_S)
        assert other.returncode == 1
        assert time.monotonic() - begin_s >= least_s
        text = (tmp_path / "log").read_text()
        assert f"process id {broker.pid}" in text
        assert ("journal-lock-acquisition-timeout" in text) is (timeout_ms > 0)


WAITS = "journal-lock-acquisition-timeout=-1"


@pytest.mark.ci
def test_it_can_wait_until_the_other_broker_has_gone(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    fill(broker.port(), 5)
    with second(tmp_path / "data", tmp_path / "log", WAITS) as other:
        wait_for(lambda: "waiting for good" in (tmp_path / "log").read_text())
        wait_for(lambda: f"process id {broker.pid}" in (tmp_path / "log").read_text())
        broker.kill()
        assert other.stdout is not None
        events = []
        while not events or events[-1]["event"] != "ready":
            events.append(json.loads(other.stdout.readline()))
        port = next(event["port"] for event in events if event.get("name") == "all")
        drain(port, 5)
        other.send_signal(signal.SIGTERM)
        assert other.wait(WAIT_S) == 0


@pytest.mark.ci
def test_a_broker_that_waits_can_be_stopped(tmp_path: Path):
    with (
        BrokerProcess(tmp_path / "data"),
        second(tmp_path / "data", tmp_path / "log", WAITS) as other,
    ):
        wait_for(lambda: "waiting for good" in (tmp_path / "log").read_text())
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=WAIT_S)
        assert other.returncode == 0
        assert "Traceback" not in (tmp_path / "log").read_text()


# --- none is missing -----------------------------------------------------------------------------

ELSEWHERE = {
    "journal-buffer-timeout": "unit/vespiary_broker/app/test_options_of_settings.py",
    "journal-file-open-timeout": "unit/vespiary_broker/store/test_keeper.py",
    "journal-ownership-lease": "integration/test_ownership.py",
    "max-disk-usage": "unit/vespiary_broker/store/test_keeper.py",
    "min-disk-free": "integration/test_broker_lifecycle.py",
    "disk-scan-period": "integration/test_broker_lifecycle.py",
    "global-max-size": "integration/test_broker_lifecycle.py",
}
"""Parameters that another file shows, and which."""

_CHAPTER = re.compile(
    r"(journal|create|log-journal|max-disk|min-disk|disk-scan)-|persistence-enabled"
    r"|(data|bindings|journal)-directory|global-max-size"
)
_OTHER_PARTS = re.compile(r"journal-(type|compact|retention)")
"""Engines, compaction and retention have test files of their own."""


def test_every_parameter_is_shown():
    refused = refused_names(BrokerSettings)
    names = {field.spelled(Spelling.KEBAB) for field in fields_of(BrokerSettings)} - set(refused)
    chapter = {n for n in names if _CHAPTER.match(n) and not _OTHER_PARTS.match(n)}
    assert chapter - SHOWN - set(ELSEWHERE) == set(), "these have no test that shows what they do"
    assert SHOWN | set(ELSEWHERE) <= names, "these are no settings"
    for name, place in ELSEWHERE.items():
        text = (TESTS / place).read_text()
        assert name in text or name.replace("-", "_") in text, f"{place} does not speak of {name}"


def test_the_environment_of_these_tests_is_plain():
    assert os.environ.get("VESPIARY_RING", "") in ("", "threads", "aio", "uring")
