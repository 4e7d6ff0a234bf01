"""Metrics of JournalArchives: what became of the last run, and since when there was none.

Owns: names and labels. Never: decides anything. Called by: `metrics`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge

from vespiary_spec.archive_status import JournalArchiveStatus, RunOutcome

_VALUES = {RunOutcome.SUCCEEDED: 1, RunOutcome.FAILED: 0, RunOutcome.RUNNING: -1}


class ArchiveMetrics:
    """Gauges of JournalArchives.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["namespace", "archive"]
        self._outcome = Gauge(
            "vespiary_operator_archive_last_run",
            "1 if the last run of a JournalArchive succeeded, 0 if it failed, -1 while it goes on.",
            labels,
            registry=registry,
        )
        self._rows = Gauge(
            "vespiary_operator_archive_last_run_rows",
            "Messages that the last run of a JournalArchive wrote, or records that it looked at.",
            labels,
            registry=registry,
        )
        self._damages = Gauge(
            "vespiary_operator_archive_last_run_damages",
            "Damages that the last verification found that looked at everything.",
            labels,
            registry=registry,
        )
        self._succeeded = Gauge(
            "vespiary_operator_archive_last_success_timestamp_seconds",
            "When the last run of a JournalArchive began that succeeded, or of verifications that "
            "looked at everything, in seconds since 1970.",
            labels,
            registry=registry,
        )

    def show(self, namespace: str, name: str, status: JournalArchiveStatus) -> None:
        """Show a JournalArchive."""
        run = status.last_run
        if run is not None:
            self._outcome.labels(namespace, name).set(_VALUES[run.outcome])
            if run.rows is not None:
                self._rows.labels(namespace, name).set(run.rows)
            if run.damages is not None:
                self._damages.labels(namespace, name).set(run.damages)
            elif run.outcome is RunOutcome.SUCCEEDED:
                self._remove(self._damages, namespace, name)  # it exports now
        if status.last_success_time:
            began = datetime.fromisoformat(status.last_success_time).timestamp()
            self._succeeded.labels(namespace, name).set(began)

    def forget(self, namespace: str, name: str) -> None:
        """Stop showing a JournalArchive that is gone."""
        for gauge in (self._outcome, self._rows, self._damages, self._succeeded):
            self._remove(gauge, namespace, name)

    def _remove(self, gauge: Gauge, namespace: str, name: str) -> None:
        with suppress(KeyError):  # not every gauge has one of it
            gauge.remove(namespace, name)
