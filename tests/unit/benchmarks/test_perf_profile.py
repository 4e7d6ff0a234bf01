"""The split of perf's samples into C, Python and kernel."""

import os
from pathlib import Path

import pytest

from benchmarks.perf_profile import Recorder, classify, read_report

_REPORT = """\
# Samples: 3K of event 'cpu-clock'
#
# Overhead  Shared Object
# ........  .....................
    56.10%  [kernel.kallsyms]
    17.20%  _native.abi3.so
    10.00%  libc.so.6
     4.00%  python3.11
     4.50%  libpython3.11.so.1.0
     2.00%  loop.cpython-311-x86_64-linux-gnu.so
     1.50%  _cffi_backend.cpython-311-x86_64-linux-gnu.so
     0.70%  [vdso]
     4.00%  [unknown]
"""


def test_rows_are_summed_by_kind() -> None:
    assert read_report(_REPORT) == {
        "kernel": 56.8,
        "C: vespiary_native": 17.2,
        "C: libc (memcpy)": 10.0,
        "Python": 8.5,
        "other": 4.0,
        "uvloop": 2.0,
        "cffi": 1.5,
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("[kernel.kallsyms]", "kernel"),
        ("[nf_tables]", "kernel"),
        ("_native.abi3.so", "C: vespiary_native"),
        ("_asyncio.cpython-311-x86_64-linux-gnu.so", "Python"),
        ("something", "other"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert classify(name) == kind


def test_without_perf_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    recorder = Recorder(os.getpid(), tmp_path / "perf.data")
    recorder.start()
    recorder.stop()
    assert "`perf` is not installed" in recorder.result().problem


def test_a_perf_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho no permission >&2\nexit 255\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    recorder = Recorder(os.getpid(), tmp_path / "perf.data")
    recorder.start()
    assert recorder.result().problem == "`perf record` failed: no permission"
