"""Every k-th system call of a journal fails: no late confirm, nothing confirmed is lost.

strace makes the k-th call fail, or say that it moved less than was asked for (0 bytes, which is
true of a call that was not made; a short event of AIO), in a real process on a real file system
(`vespiary_testkit.journal_process`); then the folder is recovered without faults. An everyday run
takes a few k for each fault; `VESPIARY_FAULT_SWEEP=200` takes all k up to 200.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_native.ring import open_ring
from vespiary_spec.errors import EngineUnavailable
from vespiary_testkit.journal_process import body_of, read_back
from vespiary_testkit.system_call_faults import tracer

pytestmark = pytest.mark.ci

SWEEP = int(os.environ.get("VESPIARY_FAULT_SWEEP", "0"))
EVERYDAY = (1, 2, 17)
END_S = 180.0


def event(result: int) -> str:
    """Return the injection that makes io_getevents hand out one event with this result."""
    # The first slot is the only one in use: one write is in flight, and nothing is read back.
    return f":poke_exit=@arg4={struct.pack('<QQqq', 0, 0, result, 0).hex()}"


@dataclass(frozen=True)
class Fault:
    """A call and what becomes of it. A harmless one must not stop the journal."""

    engine: str
    calls: str
    change: str
    is_harmless: bool = False
    may_wait: bool = False

    def __str__(self) -> str:
        change = self.change if "poke" not in self.change else f"event {self.change[-32:-16]}"
        return f"{self.engine} {self.calls} {change}"


def fails(number: int) -> str:
    return f":error={errno.errorcode[number]}"


FINAL = (errno.EIO, errno.ENOSPC)
PASSING = (errno.EAGAIN, errno.EINTR)
FAULTS = [
    *(Fault("ASYNCIO", "io_submit", fails(number)) for number in FINAL),
    *(Fault("ASYNCIO", "io_submit", fails(number), is_harmless=True) for number in PASSING),
    Fault("ASYNCIO", "io_getevents", fails(errno.EIO)),
    Fault("ASYNCIO", "io_getevents", fails(errno.EINTR), is_harmless=True),
    Fault("ASYNCIO", "io_getevents", event(-errno.EIO)),
    Fault("ASYNCIO", "io_getevents", event(-errno.ENOSPC)),
    Fault("ASYNCIO", "io_getevents", event(-errno.EAGAIN)),
    Fault("ASYNCIO", "io_getevents", event(512)),
    *(Fault("NIO", "pwritev,pwritev2", fails(number)) for number in (*FINAL, errno.EAGAIN)),
    Fault("NIO", "pwritev,pwritev2", fails(errno.EINTR), is_harmless=True),
    Fault("NIO", "pwritev,pwritev2", ":retval=0"),
    *(Fault("NIO", "fdatasync", fails(number)) for number in (*FINAL, errno.EAGAIN)),
    Fault("NIO", "fdatasync", fails(errno.EINTR), is_harmless=True),
    *(Fault("IO_URING", "io_uring_enter", fails(number)) for number in FINAL),
    *(
        Fault("IO_URING", "io_uring_enter", fails(number), is_harmless=True)
        for number in (*PASSING, errno.EBUSY)
    ),
    # Making files, sealing, freeing: a worker's calls, the same with every engine.
    Fault("NIO", "pwrite64", fails(errno.EIO)),
    Fault("NIO", "pwrite64", ":retval=0"),
    Fault("NIO", "pwrite64", fails(errno.ENOSPC), may_wait=True),
    Fault("NIO", "pwrite64", fails(errno.EINTR), is_harmless=True),
    Fault("NIO", "fsync", fails(errno.EIO)),
    Fault("NIO", "rename", fails(errno.EIO)),
]


@dataclass
class Told:
    """What a journal's process said before it ended."""

    code: int
    lines: list[str]
    confirmed: int = 0
    acknowledging: int = 0
    acknowledged: int = 0
    ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for line in self.lines:
            word, _, rest = line.partition(" ")
            if word in ("confirmed", "acknowledging", "acknowledged"):
                assert not self.ends or word == "acknowledging", f"{line!r} after {self.ends}"
                setattr(self, word, int(rest))
            elif word in ("failed", "refused", "late", "done"):
                self.ends.append(line)


def live(folder: Path, engine: str, injection: str, log: Path) -> Told:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("VESPIARY_RING", None)
    command = [sys.executable, "-m", "vespiary_testkit.journal_process", str(folder), engine]
    done = subprocess.run(
        [*tracer(injection, log=log), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Told(done.returncode, done.stdout.splitlines())


def check_nothing_is_lost(folder: Path, told: Told) -> None:
    found = read_back(folder)
    missing = set(range(told.acknowledging + 1, told.confirmed + 1)) - set(found)
    assert not missing, f"confirmed and gone: {sorted(missing)[:5]}"
    risen = set(range(1, told.acknowledged + 1)) & set(found)
    assert not risen, f"acknowledged and back: {sorted(risen)[:5]}"
    for sequence, body in found.items():
        assert body == body_of(sequence)


def moments() -> Iterator[int]:
    yield from range(1, SWEEP + 1) if SWEEP else EVERYDAY


def is_to_be_had(engine: str) -> str:
    """Return why an engine can't be had; empty if it can."""
    if not loader.is_wanted() and engine != "NIO":
        return "VESPIARY_NATIVE=0: NIO is the only engine"
    try:
        open_ring(engine, 1, strict=True)[0].close()  # type: ignore[arg-type]
    except EngineUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "fault",
    [
        fault
        if fault.engine == "ASYNCIO" or fault.change == fails(errno.EIO)
        else pytest.param(fault, marks=pytest.mark.verify)
        for fault in FAULTS
    ],
    ids=str,
)
def test_a_failing_system_call(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)
    if reason := is_to_be_had(fault.engine):
        pytest.skip(reason)
    hits = 0
    for k in moments():
        folder, log = tmp_path / f"{k}", tmp_path / f"{k}.strace"
        told = live(folder, fault.engine, f"{fault.calls}{fault.change}:when={k}", log)
        place = f"{fault}, k={k}: {told.ends}"
        is_hit = "(INJECTED" in log.read_text()
        hits += is_hit
        assert len(told.ends) == 1, place
        (end,) = told.ends
        if fault.is_harmless or not is_hit:
            assert (end, told.code) == ("done", 0), place
        elif end != "done":
            assert told.code == 1, place
            # A sentence with what failed and what to do, not a number or a stack.
            assert end.startswith(("failed ", "refused ")), place
            assert end.count("VSP-") == 1, place
        else:
            assert fault.may_wait, place
        check_nothing_is_lost(folder, told)
    assert hits, f"{fault}: the call never came"
