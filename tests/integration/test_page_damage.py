"""Paging folders as no broker would leave them: a clear sentence each, and nothing is lost."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.numbered_messages import send_numbered, take_numbered
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)
COUNT = 900
WITHOUT_ROOT_RIGHTS = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)


def pages(data: Path, address: str = "orders") -> list[Path]:
    folders = [p.parent for p in data.glob("paging/*/address") if p.read_text() == address]
    return sorted(page for folder in folders for page in folder.glob("*.page"))


def why_not(broker: BrokerProcess) -> str:
    """Return what a broker says that does not start."""
    with pytest.raises(AssertionError, match="before it was ready") as refused:
        broker.start()
    return str(refused.value)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that stopped with pages of two addresses."""
    data = tmp_path_factory.mktemp("prepared") / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        for queue in ("orders", "kept"):
            send_numbered(broker.port(), f"/queue/{queue}", range(COUNT))
            wait_for(lambda queue=queue: len(pages(data, queue)) >= 5)  # type: ignore[misc]
    return data


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / "data")


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data, *SETTINGS)
    yield broker
    if broker.process is not None:
        assert broker.stop() == 0, broker.log_text()


def verify(data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vespiary_broker", "page", "verify", str(data / "paging")]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)


def last_number(page: Path) -> int:
    """Return the number of the last message of a page."""
    command = [sys.executable, "-m", "vespiary_broker", "page", "print", "--json", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    contents = [json.loads(line).get("content") for line in done.stdout.splitlines()]
    bodies = [base64.b64decode(content) for content in contents if content]
    return max(int(match[1]) for body in bodies if (match := re.search(rb"(\d+) x", body)))


def flip(path: Path, at: int) -> None:
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


@pytest.mark.ci
@pytest.mark.parametrize("at", [40, -40], ids=["header", "footer"])
def test_a_page_whose_ends_are_damaged_stops_the_start(
    data: Path, broker: BrokerProcess, at: int
) -> None:
    page = pages(data)[2]
    flip(page, at)
    sentence = why_not(broker)
    assert str(page) in sentence
    assert verify(data).returncode == 1
    flip(page, at)
    assert verify(data).returncode == 0
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", COUNT) == list(range(COUNT))


def acknowledge(peer: StompPeer) -> list[int]:
    """Take what comes until nothing does for a moment."""
    numbers = []
    while True:
        try:
            frame = peer.receive(0.2)
        except TimeoutError:
            return numbers
        if frame.command == "MESSAGE":
            numbers.append(int(frame.body.split(b" ", 1)[0]))
            peer.send("ACK", {"id": frame.get("ack") or "", "receipt": "a"})


@pytest.mark.ci
@pytest.mark.parametrize("at", [60_000, -400], ids=["middle", "index"])
def test_a_page_that_is_damaged_inside_stops_its_queue_there_and_no_other(
    data: Path, broker: BrokerProcess, at: int
) -> None:
    page = pages(data)[2]
    least = last_number(pages(data)[1]) + 1
    flip(page, at)
    broker.start()
    assert take_numbered(broker.port(), "/queue/kept", COUNT) == list(range(COUNT))
    taken = []
    with StompPeer(broker.port()) as peer:
        peer.connect()
        headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
        peer.send("SUBSCRIBE", headers | {"prefetch-count": "20"})
        while page.name not in broker.log_text():  # it is named when it is read
            assert len(taken) < COUNT
            taken += acknowledge(peer)
        taken += acknowledge(peer)
    assert taken == list(range(len(taken)))
    assert len(taken) >= least, "all messages of the pages before are delivered"
    assert verify(data).returncode == 1
    assert page.name in verify(data).stdout
    assert broker.stop() == 0
    flip(page, at)
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", COUNT - len(taken)) == list(
        range(len(taken), COUNT)
    )


@pytest.mark.engine
def test_what_is_no_page_is_left_alone(data: Path, broker: BrokerProcess) -> None:
    folder = pages(data)[0].parent
    strange = [
        data / "paging/README",
        data / "paging/lost+found",
        folder / "notes.txt",
        folder / "0123.page",
        folder / f"{1:016x}.page",
    ]
    for path in strange:
        if path.name == "lost+found":
            path.mkdir()
        else:
            path.write_bytes(b"not a page")
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", COUNT) == list(range(COUNT))
    assert all(path.exists() for path in strange)
    assert f"{1:016x}.page" in broker.log_text(), "it has a page's name: it is told of"


@pytest.mark.ci
def test_the_pages_of_another_journal_stop_the_start_and_stay(
    data: Path, broker: BrokerProcess, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with BrokerProcess(other, *SETTINGS) as owner:
        send_numbered(owner.port(), "/queue/orders", range(COUNT))
        wait_for(lambda: len(pages(other)) >= 3)
    foreign = shutil.copy(pages(other)[0], pages(data)[0].parent)
    sentence = why_not(broker)
    assert str(foreign) in sentence
    assert Path(foreign).exists()
    Path(foreign).unlink()
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", COUNT) == list(range(COUNT))


@pytest.mark.ci
def test_a_folder_that_may_not_be_read_stops_the_start(data: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and setpriv is not there to change that")
    under = WITHOUT_ROOT_RIGHTS if os.geteuid() == 0 else ()
    broker = BrokerProcess(data, *SETTINGS, under=under)
    folder = pages(data)[0].parent
    before = folder.stat().st_mode
    folder.chmod(0)
    try:
        sentence = why_not(broker)
    finally:
        folder.chmod(before)
    assert str(folder) in sentence
    assert "Permission denied" in sentence or "EACCES" in sentence
    with broker:
        assert take_numbered(broker.port(), "/queue/orders", COUNT) == list(range(COUNT))


def test_a_paging_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("kept")
    broker = BrokerProcess(tmp_path / "data", *SETTINGS, f"paging-directory={place}")
    assert str(place) in why_not(broker)
    assert place.read_text() == "kept"


NAMES = ["..", "../../etc/passwd", "a/../../b", ".", "/", "C:\\x", "a%00b", "\u202egpj", "-rf"]


@pytest.mark.ci
@pytest.mark.parametrize("address", NAMES)
def test_no_name_of_an_address_leads_out_of_the_paging_directory(
    tmp_path: Path, address: str
) -> None:
    data = tmp_path / "inner" / "data"
    data.parent.mkdir()
    with BrokerProcess(data, *SETTINGS) as broker:
        send_numbered(broker.port(), f"/queue/{address}", range(COUNT))
        wait_for(lambda: len(list(data.glob("paging/*/*.page"))) >= 3)
        folders = [path.parent for path in data.glob("paging/*/address")]
        assert [(path / "address").read_text() for path in folders] == [address]
        assert {path.parent for path in folders} == {data / "paging"}
        assert take_numbered(broker.port(), f"/queue/{address}", COUNT) == list(range(COUNT))
    assert {path.name for path in tmp_path.iterdir()} == {"inner"}
    assert {path.name for path in data.parent.iterdir()} == {"data", "data.log"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("x" * 8000, "8000 bytes"),
        ("x" * 10_000, "at most 8192 are allowed"),
        ("a\\nb", "control character"),
        ("a\x7fb", "control character"),
    ],
)
def test_a_name_that_can_be_none_is_refused_over_stomp(
    tmp_path: Path, address: str, sentence: str
) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            frame = f"SEND\ndestination:/queue/{address}\nreceipt:r\n\nx\0"
            peer.send_raw(frame.encode())
            error = peer.receive_error()
            assert sentence in (error.get("message") or "") + error.body.decode()
        assert len(list((tmp_path / "data" / "paging").iterdir())) <= 1


def test_a_name_with_nul_is_refused_by_the_api(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        url = f"http://127.0.0.1:{broker.port('http')}/api/v1/addresses"
        body = b'{"name": "a\\u0000b"}'
        request = urllib.request.Request(
            url, data=body, method="POST", headers={"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code in (400, 422)
        assert "control character" in refused.value.read().decode()
