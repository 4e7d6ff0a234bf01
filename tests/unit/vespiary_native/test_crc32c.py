"""CRC32C: vectors, and both implementations against each other and the PyPI package."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_native import loader
from vespiary_native.crc32c import crc32c
from vespiary_testkit.seeds import seed_for

native_only = pytest.mark.skipif(not loader.is_wanted(), reason="VESPIARY_NATIVE=0")

NOISE = random.Random(seed_for("crc32c")).randbytes(70_000)


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720 B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_known_vectors(data: bytes, expected: int):
    assert crc32c(data) == expected


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_it_takes_what_holds_bytes(make: type):
    assert crc32c(make(b"123456789")) == 0xE3069283


def test_a_view_of_wider_items_counts_bytes():
    assert crc32c(memoryview(bytes(32)).cast("Q")) == 0x8A9136AA


def test_it_goes_on_from_a_value():
    whole = crc32c(NOISE)
    for cut in (0, 1, 7, 8, 4096, 69_999, 70_000):
        assert crc32c(NOISE[cut:], crc32c(NOISE[:cut])) == whole


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_it_equals_the_package(data: bytes, value: int, start: int):
    part = memoryview(data)[start:]
    assert crc32c(part, value) == package.crc32c(part, value)


@native_only
def test_both_native_ways_equal_the_package_at_every_length_and_alignment():
    ffi, lib = loader.ffi, loader.lib
    memory = ffi.from_buffer(NOISE)
    around = [*range(90), *range(370, 400), *range(1520, 1550), *range(6130, 6160), 65_536]
    for length in around:
        for start in range(16) if length < 50 or length % 8 == 0 else (0, 3):
            expected = package.crc32c(memoryview(NOISE)[start : start + length], 99)
            assert lib.vespiary_crc32c(99, memory + start, length) == expected
            assert lib.vespiary_crc32c_portable(99, memory + start, length) == expected


@native_only
def test_this_processor_has_instructions():
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        pytest.skip(f"tables only on {machine}")
    assert loader.lib.vespiary_crc32c_is_hardware() == 1


def test_the_package_serves_without_the_native_part():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from vespiary_native.crc32c import crc32c; print(crc32c(b'456789', crc32c(b'123')))",
        ],
        env={**os.environ, "VESPIARY_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) == 0xE3069283
