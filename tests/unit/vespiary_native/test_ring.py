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
from vespiary_spec.errors import ConfigError, EngineUnavailable

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

    for write_then_sync in (False, True):
        for kind in ("ASYNCIO", "NIO"):
            monkeypatch.setenv("VESPIARY_RING", "aio")
            ring, _ = open_ring(kind, 4, strict=False, write_then_sync=write_then_sync)
            assert isinstance(ring, AioRing)
            assert ring.write_then_sync is write_then_sync
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
    with pytest.raises(ValueError, match="'IO_URING' is unknown"):
        open_ring("IO_URING", 4, strict=False)  # type: ignore[arg-type]


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
    with pytest.raises(ConfigError, match=r"VESPIARY_RING.*got io_uring.*threads or aio"):
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
        timeout=30,
    )
    name, reason, imported = done.stdout.strip().split(" | ")
    assert name == "NIO"
    assert "switched off by VESPIARY_NATIVE=0" in reason
    assert imported == "False"


# A seccomp filter (seccomp(2)) that answers io_setup with an errno, as container profiles do.
FILTERED = """
import ctypes, os, struct, sys
refusal = int(sys.argv[1])
io_setup = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
program = b"".join(struct.pack("=HBBI", *instruction) for instruction in (
    (0x20, 0, 0, 0),                     # load the number of the system call
    (0x15, 0, 1, io_setup),              # is it io_setup?
    (0x06, 0, 0, 0x00050000 | refusal),  # SECCOMP_RET_ERRNO
    (0x06, 0, 0, 0x7FFF0000),            # SECCOMP_RET_ALLOW
))
held = ctypes.create_string_buffer(program, len(program))
filter = struct.pack("@HP", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
    sys.exit("no_new_privs: " + os.strerror(ctypes.get_errno()))
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter, 0, 0):
    print("no filter to be had")
    sys.exit(0)
from vespiary_native.ring import open_ring
ring, reason = open_ring("ASYNCIO", 4, strict=False)
print(ring.name)
print(reason)
ring.close()
try:
    open_ring("ASYNCIO", 4, strict=True)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


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
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the filter knows io_setup's number on x86_64 and aarch64 alone")
    done = subprocess.run(
        [sys.executable, "-c", FILTERED, str(refusal)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("no filter"):
        pytest.skip("this kernel takes no seccomp filter")
    name, reason, strict = done.stdout.splitlines()
    assert name == "NIO"
    assert sentence in reason
    assert os.strerror(refusal) in reason
    assert strict == f"EngineUnavailable {refusal}"
