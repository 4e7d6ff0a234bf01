"""A pytest plugin that records the outcome and the duration of each test, for `tiers`.

tests/conftest.py registers it when `VESPIARY_RUN_REPORT` names a file. With pytest-xdist
only the controlling process writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest


class TestResult(NamedTuple):
    """How one test ended.

    Attributes:
        outcome: `passed`, `failed` or `skipped`.
        seconds: Of its set-up, call and tear-down.
    """

    __test__ = False

    outcome: str
    seconds: float


class RunReport:
    """Collects the results of a run, and writes them when it ends.

    Args:
        path: The file, JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, TestResult] = {}
        self._not_collected: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._tests.get(report.nodeid, TestResult("passed", 0.0))
        outcome = before.outcome
        if report.failed or (report.skipped and outcome == "passed"):
            outcome = report.outcome
        self._tests[report.nodeid] = TestResult(outcome, before.seconds + report.duration)

    def pytest_sessionfinish(self) -> None:
        found = {"tests": self._tests, "not_collected": self._not_collected}
        self._path.write_text(json.dumps(found))


def read_results(path: Path) -> dict[str, TestResult]:
    """Return the results of a run by test; files that could not be collected have failed.

    Args:
        path: The file that `RunReport` wrote. A run that was killed leaves none.
    """
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    broken = {nodeid: TestResult("failed", 0.0) for nodeid in found["not_collected"]}
    return broken | {nodeid: TestResult(*result) for nodeid, result in found["tests"].items()}
