"""Fixtures of the benchmark tests: the generators, built with the sanitizers."""

import os
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
if str(_ROOT) not in sys.path:  # `benchmarks` is no part of the distribution
    sys.path.insert(0, str(_ROOT))

FAKE_BROKER = _ROOT / "tests" / "vespiary_testkit" / "stomp_server.py"


# Memory of the whole run is left to the exit on purpose: no leak check.
_SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wl,--as-needed")


@pytest.fixture(scope="session")
def stompload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks import generator

    return generator.build(tmp_path_factory.mktemp("bin") / "stompload", extra_flags=_SANITIZED)


@pytest.fixture(scope="session")
def protocolload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks import generator

    return generator.build(tmp_path_factory.mktemp("bin") / "protocolload", extra_flags=_SANITIZED)


@pytest.fixture(autouse=True)
def sanitizer_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")


@pytest.fixture
def fake_broker(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT / "tests"), known]))
    return (sys.executable, str(FAKE_BROKER))
