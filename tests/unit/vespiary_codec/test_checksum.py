"""CRC32C against published vectors, and the two implementations against each other."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vespiary_codec
from vespiary_codec import checksum

# RFC 3720, appendix B.4, "CRC Examples".
ISCSI_READ_COMMAND = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
    "0200000000000000"
)
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (ISCSI_READ_COMMAND, 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize("function", [checksum.crc32c, checksum.crc32c_python])
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(function, data, expected):
    assert function(data) == expected


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_both_implementations_agree(data, value):
    assert checksum.crc32c(data, value) == checksum.crc32c_python(data, value)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_value_continues_a_sum(first, second):
    for function in (checksum.crc32c, checksum.crc32c_python):
        assert function(second, function(first)) == function(first + second)


@pytest.mark.parametrize("size", range(20))
def test_every_buffer_type_and_length(size):
    data = bytes(range(7, 7 + size))
    view = memoryview(b"--" + data + b"--")[2 : 2 + size]
    expected = checksum.crc32c_python(data)
    for buffer in (data, bytearray(data), view):
        assert checksum.crc32c(buffer) == expected
        assert checksum.crc32c_python(buffer) == expected


def test_the_package_is_used_when_it_is_there():
    pytest.importorskip("crc32c", reason="the crc32c package is not installed")
    assert checksum.implementation() == "crc32c"


def test_the_package_is_imported_when_there_is_more_to_sum_than_its_import_is_worth():
    pytest.importorskip("crc32c", reason="the crc32c package is not installed")
    program = (
        "import sys\n"
        "from vespiary_codec.checksum import crc32c\n"
        "sums = {crc32c(bytes(4096)) for _ in range(64)}\n"
        "before = 'crc32c' in sys.modules\n"
        "sums.add(crc32c(bytes(4096)))\n"
        "print(before, 'crc32c' in sys.modules, len(sums))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True", "1"]


def test_a_bare_interpreter_gets_the_tables():
    root = str(Path(vespiary_codec.__file__).parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        "from vespiary_codec.checksum import crc32c, implementation\n"
        "print(implementation(), hex(crc32c(b'123456789')))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["python", "0xe3069283"]
