"""Metrics of how far behind the operator is: what waits, and how old is what it knows.

Owns: names and labels. Never: decides anything. Called by: `metrics`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from vespiary_operator import kinds
from vespiary_operator.kinds import Kind
from vespiary_operator.work import Backlog


class FreshnessMetrics:
    """Gauges that are read at each scrape.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge(
            "vespiary_operator_queue_waiting",
            "Resources whose time to be looked at has come.",
            registry=registry,
        )
        self._oldest = Gauge(
            "vespiary_operator_queue_oldest_seconds",
            "Seconds that the oldest of them waits, or that one has been worked on.",
            registry=registry,
        )
        self._resync = Gauge(
            "vespiary_operator_resync_age_seconds",
            "Seconds since everything was last listed whole.",
            registry=registry,
        )
        self._watches = Gauge(
            "vespiary_operator_watch_age_seconds",
            "Seconds since the API server last said something of a kind, by an event or a list.",
            ["kind"],
            registry=registry,
        )

    def watch_queue(self, look: Callable[[], Backlog]) -> None:
        """Read what waits from a function at each scrape."""
        self._waiting.set_function(lambda: float(look().waiting))
        self._oldest.set_function(lambda: look().oldest_s)

    def watch_freshness(
        self, resync_age_s: Callable[[], float], silence_s: Callable[[Kind], float]
    ) -> None:
        """Read how old is what is known from functions at each scrape.

        Args:
            resync_age_s: Returns the seconds since everything was listed.
            silence_s: Returns the seconds since something was heard of a kind.
        """
        self._resync.set_function(resync_age_s)
        for kind in (kinds.BROKER, *kinds.WATCHED_CHILDREN):
            self._watches.labels(kind.name).set_function(functools.partial(silence_s, kind))
