"""What is measured is compiled, whatever the environment says."""

import importlib.util
from pathlib import Path

import pytest

import vespiary_spec.version
from benchmarks import bytecode


def test_a_package_is_compiled_although_python_may_not_write_bytecode(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    cached = Path(importlib.util.cache_from_source(vespiary_spec.version.__file__))
    cached.unlink(missing_ok=True)
    bytecode.compile_packages()
    assert cached.stat().st_size > 0


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bytecode, "PACKAGES", ("vespiary_nowhere",))
    with pytest.raises(RuntimeError, match="vespiary_nowhere is not installed"):
        bytecode.compile_packages()
