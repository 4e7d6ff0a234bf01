"""What every test sees: the repository's root on the path, and which implementations run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))  # `benchmarks` is no installed package


def pytest_configure(config: pytest.Config) -> None:
    """Have Hypothesis look at no clock: an example that is slow says that the machine is busy."""
    if config.pluginmanager.has_plugin("hypothesispytest"):
        # Not at the top: a run without the plugin starts in half the time.
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "any machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("any machine")


def pytest_report_header() -> str:
    core = "twin (pure Python)" if os.environ.get("VESPIARY_NATIVE") == "0" else "native (C)"
    ring = os.environ.get("VESPIARY_RING") or ("threads" if core.startswith("twin") else "aio")
    return f"vespiary: core {core}, ring {ring}"


@pytest.fixture(scope="session", autouse=True)
def no_mount_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Take back what this process's tests have mounted, even when it is killed."""
    from vespiary_testkit.mount_guard import mounts_end_with

    if os.geteuid() != 0:
        yield
        return
    with mounts_end_with(tmp_path_factory.getbasetemp()):
        yield
