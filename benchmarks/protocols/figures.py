"""What was measured, as figures beside their floors.

Owns: which figures there are of a row, and the ratios between rows. Must never: measure. Called by
`benchmarks.protocols.__main__`.
"""

from collections.abc import Mapping, Sequence

from benchmarks.journal.__main__ import Figure
from benchmarks.protocols.measurement import IdleFigures, LoadFigures
from benchmarks.protocols.rows import ROWS, TLS, Row

_MIB = 1 << 20
_IDLE_MIB = 250
_TLS_RATIO = 2.0
_RATIOS = [
    (f"{protocol} {load}", f"STOMP {load}")
    for load in ("1 x 200", "10 x 100", "8 + 8")
    for protocol in ("MQTT", "AMQP")
]


def load_figures(row: Row, runs: Sequence[LoadFigures]) -> list[Figure]:
    """Return the figures of a row."""
    delivers = row.load.consumers > 0
    rates = [run.delivered_per_s if delivers else run.confirmed_per_s for run in runs]
    return [
        Figure(
            name=f"{row.name}: {'delivered' if delivers else 'confirmed'} a second",
            values=rates,
            bound=row.per_s,
            at_least=True,
        ),
        Figure(name=f"{row.name}: p50 of confirms in us", values=[r.confirm_p50_us for r in runs]),
        Figure(
            name=f"{row.name}: CPU us a message",
            values=[run.cpu_us_per_message for run in runs],
            bound=row.cpu_us,
        ),
    ]


def ratio_figures(found: Mapping[str, Sequence[LoadFigures]]) -> list[Figure]:
    """Return what rows are to one another, round by round: the disk is noisy, the ratio is not.

    Args:
        found: The runs of each row, in the order of the rounds.
    """
    figures = []
    for name, reference in _RATIOS:
        if name in found and reference in found:
            pairs = zip(found[name], found[reference], strict=True)
            values = [ours.confirmed_per_s / theirs.confirmed_per_s for ours, theirs in pairs]
            figures.append(Figure(name=f"{name} per STOMP", values=values))
    for name in ROWS:
        plain = name.removesuffix(TLS)
        if name != plain and name in found and plain in found:
            pairs = zip(found[name], found[plain], strict=True)
            both = [(a.cpu_us_per_message, b.cpu_us_per_message) for a, b in pairs]
            values = [a / b for a, b in both if b]  # a short run takes less than the kernel counts
            if values:
                title = f"{name} per plain: CPU"
                figures.append(Figure(name=title, values=values, bound=_TLS_RATIO))
    return figures


def idle_figures(runs: Sequence[IdleFigures]) -> list[Figure]:
    """Return the figures of idle connections."""
    return [
        Figure(
            name=f"MiB with {runs[0].connections} idle connections",
            values=[run.with_bytes / _MIB for run in runs],
            bound=_IDLE_MIB,
        ),
        Figure(name="KiB a connection", values=[run.bytes_each / 1024 for run in runs]),
    ]
