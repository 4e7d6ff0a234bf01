"""Engines that the kernel refuses to a running broker: which one it takes, and where it says so."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_native.ring import open_ring
from vespiary_spec.errors import EngineUnavailable
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.system_call_faults import tracer

SMALL = ("journal-file-size=1MiB",)

pytestmark = pytest.mark.skipif(
    not loader.is_wanted(), reason="VESPIARY_NATIVE=0: NIO is the only engine"
)


@pytest.fixture(autouse=True)
def _no_forced_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)


def get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}{path}") as answer:
        return str(answer.read().decode())


def said_everywhere(broker: BrokerProcess, asked: str, effective: str) -> str:
    """Check that the engine is in event, log, metric and API; return the reason of the API."""
    assert broker.ready["engine"] == effective
    assert broker.ready["durability"] == "D2"
    assert f"engine={effective}" in broker.log_text()
    metrics = get(broker, "/metrics")
    labels = f'asked_engine="{asked}",durability="D2",engine="{effective}"'
    assert f"vespiary_journal_info{{{labels}}} 1.0" in metrics
    is_fallback = float(asked != effective)
    assert f"vespiary_journal_engine_is_fallback {is_fallback}" in metrics
    journal = json.loads(get(broker, "/api/v1/journal"))
    assert (journal["askedEngine"], journal["engine"]) == (asked, effective)
    reason = journal["fallbackReason"] or ""
    assert bool(reason) is (asked != effective)
    assert reason in broker.log_text()
    return reason


def refused_start(data: Path, *settings: str, under: list[str]) -> str:
    """Start a broker that must not start; return what it says."""
    command = [*under, sys.executable, "-m", "vespiary_broker", "run", "--json", "--port", "0"]
    command += ["--data", str(data)]
    for setting in (*SMALL, *settings):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "ready" not in done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_io_uring_runs_a_broker(tmp_path: Path):
    try:
        open_ring("IO_URING", 1, strict=True)[0].close()
    except EngineUnavailable as error:
        pytest.skip(str(error))
    with BrokerProcess(tmp_path / "data", *SMALL, "journal-type=IO_URING") as broker:
        assert said_everywhere(broker, "IO_URING", "IO_URING") == ""


def test_io_uring_that_is_forbidden_becomes_asyncio(tmp_path: Path):
    under = tracer("io_uring_setup:error=EPERM")
    settings = (*SMALL, "journal-type=IO_URING")
    with BrokerProcess(tmp_path / "data", *settings, under=under) as broker:
        reason = said_everywhere(broker, "IO_URING", "ASYNCIO")
    assert reason.startswith("ASYNCIO is used, since IO_URING can't be: ")
    assert "forbids io_uring" in reason
    told = refused_start(
        tmp_path / "strict", "journal-type=IO_URING", "journal-type-strict=true", under=under
    )
    assert "journal-type-strict forbids another engine" in told
    assert "forbids io_uring" in told


def test_an_exhausted_aio_max_nr_is_named_with_its_numbers(tmp_path: Path):
    under = tracer("io_setup:error=EAGAIN")
    with BrokerProcess(tmp_path / "data", *SMALL, under=under) as broker:
        reason = said_everywhere(broker, "ASYNCIO", "NIO")
    maximum = Path("/proc/sys/fs/aio-max-nr").read_text().strip()
    assert f"AIO needs 500 of fs.aio-max-nr = {maximum}; taken are fs.aio-nr = " in reason
    assert "raise fs.aio-max-nr on the node" in reason
    told = refused_start(tmp_path / "strict", "journal-type-strict=true", under=under)
    assert f"AIO needs 500 of fs.aio-max-nr = {maximum}" in told
    assert "raise fs.aio-max-nr" in told
