"""Set-up of every test: the repository's root on the path, the seed, and the header of the report.

Also decides which tests a tier leaves out: those in quarantine, and those whose libraries are not
installed.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from vespiary_testkit import seeds

_ROOT = Path(__file__).resolve().parents[1]
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))  # `benchmarks` is no installed package

NEEDS_PYSPARK = frozenset(
    _ROOT / "tests" / name
    for name in (
        "integration/test_import.py",
        "integration/test_sink.py",
        "integration/test_stream_source.py",
        "unit/benchmarks/pipeline/test_live_queue_benchmark.py",
        "unit/benchmarks/pipeline/test_scan_benchmark.py",
        "unit/vespiary_pipeline/lake/test_lake_tables.py",
        "unit/vespiary_pipeline/test_archive_run.py",
        "unit/vespiary_pipeline/test_bad_input_bodies.py",
        "unit/vespiary_pipeline/test_bad_input_brokers.py",
        "unit/vespiary_pipeline/test_bad_input_paths.py",
        "unit/vespiary_pipeline/test_bad_input_spark.py",
        "unit/vespiary_pipeline/test_bad_input_targets.py",
        "unit/vespiary_pipeline/test_broker_files.py",
        "unit/vespiary_pipeline/test_cli_register.py",
        "unit/vespiary_pipeline/test_cli_usage.py",
        "unit/vespiary_pipeline/test_failures.py",
        "unit/vespiary_pipeline/test_import_folder.py",
        "unit/vespiary_pipeline/test_import_writer.py",
        "unit/vespiary_pipeline/test_micro_batches.py",
        "unit/vespiary_pipeline/test_part_files.py",
        "unit/vespiary_pipeline/test_progress.py",
        "unit/vespiary_pipeline/test_reporting.py",
        "unit/vespiary_pipeline/test_source_dead.py",
        "unit/vespiary_pipeline/test_source_journals.py",
        "unit/vespiary_pipeline/test_source_live.py",
        "unit/vespiary_pipeline/test_source_places.py",
        "unit/vespiary_pipeline/test_source_sizes.py",
        "unit/vespiary_pipeline/test_verdicts.py",
        "unit/vespiary_pipeline/transform/test_outcomes.py",
    )
)
"""Modules that need PySpark, Delta Lake or Iceberg, without a JVM. They run in `.ci/run`, where
these are installed: they are too large a download for `make test`. tests/repo/test_dependencies.py
keeps the list complete."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that cannot be imported; None lets pytest decide."""
    needs_pyspark = collection_path in NEEDS_PYSPARK or collection_path == _ROOT / "tests/spark"
    if needs_pyspark and importlib.util.find_spec("pyspark") is None:
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector: thousands are created, and none is freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark modules that need PySpark `ci`; set quarantined tests apart.

    `make test` and `.ci/run` leave them out; in `make verify` they may fail.
    """
    for item in items:
        if item.path in NEEDS_PYSPARK:
            item.add_marker(pytest.mark.ci)
    tier = os.environ.get("VESPIARY_TIER")
    if tier is None:
        return
    entries = tomllib.loads((_ROOT / "tests/quarantine.toml").read_text()).get("test", [])
    nodes = {entry["node"] for entry in entries}
    quarantined = [item for item in items if nodes & {item.nodeid, item.nodeid.partition("[")[0]}]
    if tier == "verify":
        for item in quarantined:
            item.add_marker(pytest.mark.xfail(strict=False, reason="in quarantine"))
    else:
        config.hook.pytest_deselected(items=quarantined)
        items[:] = [item for item in items if item not in quarantined]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed of this process and those it starts, before Hypothesis reads its options."""
    os.environ[seeds.VARIABLE] = str(seeds.run_seed())
    if config.pluginmanager.has_plugin("hypothesispytest"):
        # Not at the top: a run without the plugin starts in half the time.
        from vespiary_testkit.seeded_hypothesis import configure

        configure(config)
    report = os.environ.pop(
        "VESPIARY_RUN_REPORT", None
    )  # for this process alone, not for its children
    if report is not None:
        from vespiary_testkit.run_report import RunReport

        config.pluginmanager.register(RunReport(Path(report)))


def pytest_report_header() -> list[str]:
    core = "twin (pure Python)" if os.environ.get("VESPIARY_NATIVE") == "0" else "native (C)"
    ring = os.environ.get("VESPIARY_RING") or ("threads" if core.startswith("twin") else "aio")
    replay = f"{seeds.VARIABLE}={seeds.run_seed()} .venv/bin/python -m pytest NODE"
    return [
        f"vespiary: core {core}, ring {ring}",
        f"vespiary: seed {seeds.run_seed()} (replay: {replay})",
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed even with `-q`, and the command that repeats each failed test."""
    if not terminalreporter.showheader:
        terminalreporter.write_line(f"vespiary: seed {seeds.run_seed()}")
    reports = [r for kind in ("failed", "error") for r in terminalreporter.stats.get(kind, [])]
    if not reports:
        return
    asked = getattr(terminalreporter.config.option, "hypothesis_seed", None)
    is_other = asked is not None and str(asked) != str(seeds.run_seed())
    options = [f"--hypothesis-seed={asked}"] if is_other else []
    terminalreporter.section("to repeat the failures", "-")
    for node_id in dict.fromkeys(report.nodeid for report in reports):
        terminalreporter.write_line(seeds.replay_line(node_id, os.environ, *options))


@pytest.fixture(scope="session", autouse=True)
def no_mount_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Unmount everything that this process's tests have mounted, even if it is killed."""
    from vespiary_testkit.mount_guard import mounts_end_with

    if os.geteuid() != 0:
        yield
        return
    with mounts_end_with(tmp_path_factory.getbasetemp()):
        yield
