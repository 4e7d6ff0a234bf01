"""How full the volumes are: an operation of the API, and metrics.

Owns the records and the one look at a time. Must never judge. Called by `broker_routes` and
`endpoints`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from vespiary_broker.admin.journal_records import Record
from vespiary_broker.admin.ports import Broker
from vespiary_broker.store.volumes.space import SpaceLook


class Volume(Record, frozen=True):
    """How full one volume is.

    Attributes:
        name: bindings, journal, paging, large-messages or jms.
        size_bytes: Size of its filesystem.
        free_bytes: Space left for the broker.
        inodes: Inodes of the filesystem; 0 where it has no fixed number.
        free_inodes: Inodes left; 0 where there is no fixed number.
    """

    name: str
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class VolumePage(Record, frozen=True):
    """All volumes that could be looked at.

    Attributes:
        items: The volumes, none without persistence.
    """

    items: tuple[Volume, ...]


class Volumes:
    """The volumes of a broker.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._look: SpaceLook | None = None

    async def records(self) -> tuple[Volume, ...]:
        """Return how full the volumes are now; none before they were verified."""
        if self._look is None:
            report = self._broker.report
            if report is None:
                return ()
            self._look = SpaceLook((each.result.name, each.result.path) for each in report.volumes)
        return tuple(
            Volume(
                name=each.name,
                size_bytes=each.size_bytes,
                free_bytes=each.free_bytes,
                inodes=each.inodes,
                free_inodes=each.free_inodes,
            )
            for each in await self._look.look()
        )


def metrics_of(volumes: Iterable[Volume], prefix: str) -> Iterator[Metric]:
    """Yield the metrics of volumes.

    Args:
        volumes: The volumes.
        prefix: What all names begin with.
    """
    found = tuple(volumes)
    for name, text, values in (
        ("size_bytes", "Size of a volume's filesystem.", [v.size_bytes for v in found]),
        (
            "free_bytes",
            "Space that the broker has left on a volume.",
            [v.free_bytes for v in found],
        ),
        (
            "inodes",
            "Inodes of a volume's filesystem; 0 where it has no fixed number.",
            [v.inodes for v in found],
        ),
        (
            "free_inodes",
            "Inodes left on a volume; 0 where there is no fixed number.",
            [v.free_inodes for v in found],
        ),
    ):
        family = GaugeMetricFamily(f"{prefix}_volume_{name}", text, labels=("volume",))
        for volume, value in zip(found, values, strict=True):
            family.add_metric((volume.name,), value)
        yield family
