"""`open_ring`: what is asked for, or a sentence why not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_native.abc_ring import DEPTH_MAX
from vespiary_native.ring import open_ring
from vespiary_spec.errors import ConfigError, EngineUnavailable, NativeError

native_only = pytest.mark.skipif(
    not loader.is_wanted(), reason="VESPIARY_NATIVE=0: no AIO without the native part"
)


@pytest.fixture(autouse=True)
def _no_forced_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)


def aio_maximum() -> int:
    return int(Path("/proc/sys/fs/aio-max-nr").read_text())


@native_only
def test_asyncio_is_had():
    ring, reason = open_ring("ASYNCIO", 4, strict=True)
    assert (ring.name, ring.depth, reason) == ("ASYNCIO", 4, None)
    ring.close()


@native_only
def test_asyncio_flushes_as_asked_for(monkeypatch: pytest.MonkeyPatch):
    from vespiary_native.aio import AioRing

    for write_then_sync in (None, False, True):
        for kind in ("ASYNCIO", "NIO"):
            monkeypatch.setenv("VESPIARY_RING", "aio")
            ring, _ = open_ring(kind, 4, strict=False, write_then_sync=write_then_sync)
            assert isinstance(ring, AioRing)
            assert ring.write_then_sync is bool(write_then_sync)
            ring.close()


@pytest.mark.parametrize("strict", [False, True])
def test_nio_is_had(strict: bool):
    ring, reason = open_ring("NIO", 4, strict=strict)
    assert (ring.name, ring.depth, reason) == ("NIO", 4, None)
    ring.close()


@native_only
def test_an_exhausted_maximum_falls_back_with_the_numbers():
    depth = aio_maximum() + 1
    if depth > DEPTH_MAX:
        pytest.skip(f"fs.aio-max-nr is above the greatest depth of a ring: {depth - 1}")
    ring, reason = open_ring("ASYNCIO", depth, strict=False)
    assert ring.name == "NIO"
    assert reason is not None
    assert f"AIO needs {depth} of fs.aio-max-nr = {depth - 1}; taken are fs.aio-nr = " in reason
    assert "raise fs.aio-max-nr" in reason
    assert reason.endswith(".")
    assert reason.count(". ") == 0  # one sentence
    ring.close()


@native_only
def test_strict_raises_instead():
    depth = aio_maximum() + 1
    if depth > DEPTH_MAX:
        pytest.skip(f"fs.aio-max-nr is above the greatest depth of a ring: {depth - 1}")
    with pytest.raises(EngineUnavailable, match=f"fs.aio-max-nr = {depth - 1}") as caught:
        open_ring("ASYNCIO", depth, strict=True)
    assert caught.value.errno == errno.EAGAIN
    assert isinstance(caught.value, OSError)
    assert "raise fs.aio-max-nr" in caught.value.cure


@native_only
def test_closing_gives_the_contexts_back():
    maximum = aio_maximum()
    if maximum > 4 * DEPTH_MAX:
        pytest.skip(f"fs.aio-max-nr is {maximum}: cannot be used up here")
    for _ in range(9):  # more than the maximum in all
        ring, _reason = open_ring("ASYNCIO", maximum // 8, strict=True)
        ring.close()


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'MAPPED' is unknown: allowed are IO_URING, ASYNCIO, NIO"):
        open_ring("MAPPED", 4, strict=False)  # type: ignore[arg-type]


def test_the_environment_forces_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_RING", "threads")
    ring, reason = open_ring("ASYNCIO", 4, strict=False)
    assert ring.name == "NIO"
    assert reason == "VESPIARY_RING=threads forces NIO where ASYNCIO was asked for."
    ring.close()
    ring, reason = open_ring("NIO", 4, strict=True)
    assert (ring.name, reason) == ("NIO", None)
    ring.close()
    with pytest.raises(EngineUnavailable, match="VESPIARY_RING forces NIO"):
        open_ring("ASYNCIO", 4, strict=True)


@native_only
def test_the_environment_forces_aio(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_RING", "aio")
    ring, reason = open_ring("NIO", 4, strict=False)
    assert ring.name == "ASYNCIO"
    assert reason == "VESPIARY_RING=aio forces ASYNCIO where NIO was asked for."
    ring.close()
    if aio_maximum() < DEPTH_MAX:
        with pytest.raises(OSError, match=r"fs\.aio-max-nr"):  # forced: no fallback
            open_ring("ASYNCIO", aio_maximum() + 1, strict=False)


def test_an_unknown_force_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_RING", "io_uring")
    with pytest.raises(ConfigError, match=r"VESPIARY_RING.*got io_uring.*threads, aio or uring"):
        open_ring("NIO", 4, strict=False)


def test_without_the_native_part_nio_is_used_with_the_reason():
    script = (
        "import sys\n"
        "from vespiary_native.ring import open_ring\n"
        "ring, reason = open_ring('ASYNCIO', 4, strict=False)\n"
        "print(ring.name, '|', reason, '|', 'vespiary_native._native' in sys.modules)\n"
        "ring.close()\n"
    )
    environment = {
        **os.environ,
        "VESPIARY_NATIVE": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("VESPIARY_RING", None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    name, reason, imported = done.stdout.strip().split(" | ")
    assert name == "NIO"
    assert "switched off by VESPIARY_NATIVE=0" in reason
    assert imported == "False"


# A seccomp filter (seccomp(2)) that answers system calls with an errno, as container profiles do.
FILTERED = """
import ctypes, os, struct, sys
kind, *refusals = sys.argv[1:]
NUMBERS = {
    "io_setup": {"x86_64": 206, "aarch64": 0},
    "io_uring_setup": {"x86_64": 425, "aarch64": 425},
}
instructions = [(0x20, 0, 0, 0)]  # load the number of the system call
for refusal in refusals:
    call, number = refusal.split("=")
    instructions += [
        (0x15, 0, 1, NUMBERS[call][os.uname().machine]),
        (0x06, 0, 0, 0x00050000 | int(number)),  # SECCOMP_RET_ERRNO
    ]
instructions.append((0x06, 0, 0, 0x7FFF0000))  # SECCOMP_RET_ALLOW
program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
held = ctypes.create_string_buffer(program, len(program))
filter = struct.pack("@HP", len(instructions), ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
    sys.exit("no_new_privs: " + os.strerror(ctypes.get_errno()))
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter, 0, 0):
    print("no filter to be had")
    sys.exit(0)
from vespiary_native.ring import open_ring
ring, reason = open_ring(kind, 4, strict=False)
print(ring.name)
print(reason)
ring.close()
try:
    open_ring(kind, 4, strict=True)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def open_filtered(kind: str, **refusals: int) -> tuple[str, str, str]:
    """Open a ring where the kernel refuses system calls: name, reason, and what strict raises."""
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the filter knows the calls' numbers on x86_64 and aarch64 alone")
    words = [f"{call}={number}" for call, number in refusals.items()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("VESPIARY_RING", None)
    done = subprocess.run(
        [sys.executable, "-c", FILTERED, kind, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("no filter"):
        pytest.skip("this kernel takes no seccomp filter")
    name, reason, strict = done.stdout.splitlines()
    return name, reason, strict


@native_only
@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (errno.EPERM, "a filter forbids io_setup"),
        (errno.ENOSYS, "the kernel has no AIO"),
        (errno.ENOMEM, "io_setup for 4 requests failed"),
    ],
)
def test_a_refusing_kernel_is_named(refusal: int, sentence: str):
    name, reason, strict = open_filtered("ASYNCIO", io_setup=refusal)
    assert name == "NIO"
    assert sentence in reason
    assert os.strerror(refusal) in reason
    assert strict == f"EngineUnavailable {refusal}"


# --- IO_URING --------------------------------------------------------------------------------


def io_uring_is_had() -> bool:
    if not loader.is_wanted():
        return False
    from vespiary_native.uring import UringRing

    try:
        UringRing(1).close()
    except NativeError:
        return False
    return True


uring_only = pytest.mark.skipif(not io_uring_is_had(), reason="this kernel gives no io_uring")


@uring_only
def test_io_uring_is_had_and_takes_nothing_of_aio_max_nr():
    depth = min(aio_maximum(), 65_536)
    before = Path("/proc/sys/fs/aio-nr").read_text()
    ring, reason = open_ring("IO_URING", depth, strict=True)
    assert (ring.name, ring.depth, reason) == ("IO_URING", depth, None)
    assert int(Path("/proc/sys/fs/aio-nr").read_text()) < int(before) + depth
    ring.close()


@uring_only
@pytest.mark.parametrize(("asked", "expected"), [(None, True), (True, True), (False, False)])
def test_io_uring_flushes_by_a_request_of_its_own(asked: bool | None, expected: bool):
    from vespiary_native.uring import UringRing

    ring, _ = open_ring("IO_URING", 4, strict=True, write_then_sync=asked)
    assert isinstance(ring, UringRing)
    assert ring.write_then_sync is expected
    ring.close()


@uring_only
def test_the_environment_forces_io_uring(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_RING", "uring")
    ring, reason = open_ring("ASYNCIO", 4, strict=False)
    assert ring.name == "IO_URING"
    assert reason == "VESPIARY_RING=uring forces IO_URING where ASYNCIO was asked for."
    ring.close()


@native_only
@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (errno.EPERM, "forbids io_uring"),
        (errno.ENOSYS, "the kernel has no io_uring, or a filter hides it"),
        (errno.EINVAL, "the kernel's io_uring is too old"),
        (errno.ENOMEM, "there is no memory for io_uring with 4 requests"),
        (errno.EMFILE, "io_uring_setup for 4 requests failed"),
    ],
)
def test_without_io_uring_asyncio_is_used_and_the_reason_said(refusal: int, sentence: str):
    name, reason, strict = open_filtered("IO_URING", io_uring_setup=refusal)
    assert name == "ASYNCIO"
    assert reason.startswith("ASYNCIO is used, since IO_URING can't be: ")
    assert sentence in reason
    assert reason.endswith(".")
    shown = errno.EOPNOTSUPP if refusal == errno.EINVAL else refusal
    assert strict == f"EngineUnavailable {shown}"


@native_only
def test_without_io_uring_and_aio_nio_is_used_and_both_reasons_said():
    name, reason, strict = open_filtered(
        "IO_URING", io_uring_setup=errno.EPERM, io_setup=errno.EAGAIN
    )
    assert name == "NIO"
    assert reason.startswith("NIO is used, since IO_URING can't be: ")
    assert "; and ASYNCIO can't be: AIO needs 4 of fs.aio-max-nr = " in reason
    assert strict == f"EngineUnavailable {errno.EPERM}"


@native_only
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("2", "kernel.io_uring_disabled = 2 forbids io_uring"),
        ("1", "kernel.io_uring_disabled = 1 forbids io_uring"),
        ("0", "a filter forbids io_uring_setup"),
        (None, "a filter forbids io_uring_setup"),
    ],
)
def test_the_kernels_switch_and_a_filter_are_told_apart(
    tmp_path: Path, value: str | None, sentence: str
):
    from vespiary_native.uring import forbidden

    switch = tmp_path / "io_uring_disabled"
    if value is not None:
        switch.write_text(f"{value}\n")
    error = forbidden(switch)
    assert error.what.startswith(sentence)
    assert error.errno == errno.EPERM
    assert error.cure
