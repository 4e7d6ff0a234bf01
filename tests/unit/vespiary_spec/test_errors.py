"""The error tree: messages, codes, the catalogue, and that it needs nothing else."""

from __future__ import annotations

import errno
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import vespiary_spec
from vespiary_spec import errors
from vespiary_spec.error_catalogue import CATALOGUE
from vespiary_spec.errors import ConfigError, NativeError, QuantityError, VespiaryError


def subclasses(kind: type[VespiaryError]) -> set[type[VespiaryError]]:
    found = {kind}
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found |= subclasses(child)
    return found


def test_every_error_is_in_the_catalogue_once() -> None:
    listed = [entry.error for entry in CATALOGUE]
    assert len(listed) == len(set(listed))
    assert set(listed) == subclasses(VespiaryError)


def test_codes_are_unique_and_of_one_form() -> None:
    codes = [entry.error.code for entry in CATALOGUE]
    assert len(codes) == len(set(codes))
    for code in codes:
        prefix, letter, number = code[:4], code[4], code[5:]
        assert prefix == "VSP-"
        assert letter in "VCPJNSRD"
        assert len(number) == 3
        assert number.isdigit()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ConfigError", "VSP-C101"),
        ("TornTail", "VSP-J103"),
        ("CorruptRecord", "VSP-J104"),
        ("StorageRefused", "VSP-S101"),
        ("NativeError", "VSP-N101"),
    ],
)
def test_published_codes_never_move(name: str, code: str) -> None:
    assert getattr(errors, name).code == code


def test_a_message_says_where_what_measured_allowed_and_what_to_do() -> None:
    error = ConfigError(
        "out of bounds", path="journal-min-files", value=1, allowed="2 to 10000", cure="use 2"
    )
    assert str(error) == (
        "journal-min-files: out of bounds (got 1, allowed: 2 to 10000). Use 2. [VSP-C101]"
    )
    assert (error.path, error.value) == ("journal-min-files", 1)
    assert error.to_dict()["code"] == "VSP-C101"


def test_an_error_in_another_leaves_one_code():
    inner = QuantityError("ten is no size", cure="write 10MiB")
    outer = ConfigError(f"it cannot be used: {inner}", path="a")
    assert str(outer) == "a: it cannot be used: ten is no size. Write 10MiB. [VSP-C101]"
    outer = ConfigError("it cannot be used", path="a", cure=f"see: {inner}")
    assert str(outer).count("VSP-") == 1


def test_long_input_does_not_make_a_long_message() -> None:
    assert len(str(ConfigError("too long", value="x" * 100_000))) < 300


def test_blank_input_is_visible() -> None:
    assert "got ''" in str(ConfigError("empty", value=""))
    assert "got ' a'" in str(ConfigError("padded", value=" a"))


def test_a_native_error_is_an_os_error_too() -> None:
    error = NativeError("io_setup(500)", errno.EAGAIN, where="/data/journal")
    assert isinstance(error, OSError)
    assert error.errno == errno.EAGAIN
    assert error.strerror
    assert "io_setup(500)" in str(error)
    assert error.strerror in str(error)


def test_errors_survive_a_process_border() -> None:
    for original in (
        NativeError("pwrite", errno.EIO, where="f:4096", cure="look at the disk"),
        ConfigError("bad", path="a.b", value=3),
        errors.RemoteProtocolError("bad frame", reply=b"ERROR\n\n\0"),
        errors.TemporaryReconcileError("later", delay_s=3.0),
    ):
        copy = pickle.loads(pickle.dumps(original))
        assert type(copy) is type(original)
        assert str(copy) == str(original)
        assert copy.__dict__ == original.__dict__


def test_errors_units_and_limits_run_on_a_bare_interpreter() -> None:
    source = Path(vespiary_spec.__file__).resolve().parents[1]
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        "import vespiary_spec.errors, vespiary_spec.units, vespiary_spec.limits\n"
        "assert 'msgspec' not in sys.modules and 'site' not in sys.modules\n"
        "print(vespiary_spec.units.parse_size('490KiB'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "501760\n", done.stderr
