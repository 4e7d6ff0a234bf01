"""`python -m benchmarks.protocols`: MQTT beside STOMP, and connections that do nothing.

Owns: the command line, the floors and the table. Must never: be part of a test's verdict on speed.
Called by `make bench-protocols`.
"""

import shutil
import tempfile
from pathlib import Path

import click
from rich.console import Console

from benchmarks import bytecode, machine
from benchmarks.broker import BrokerError
from benchmarks.generator import GeneratorError, Load, MqttLoad
from benchmarks.journal.__main__ import Figure, show
from benchmarks.protocols import measurement
from benchmarks.protocols.measurement import IdleFigures, LoadFigures, ProtocolError

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1 << 20
_PRODUCED = 1_500_000
"""A load that only produces leaves its messages in the store: this bounds it to 1.6 GB."""

LOADS: dict[str, Load | MqttLoad] = {
    "MQTT 1 x 200": MqttLoad(window=200, messages=_PRODUCED),
    "STOMP 1 x 200": Load(window=200, messages=_PRODUCED),
    "MQTT 10 x 100": MqttLoad(producers=10, queues=10, window=100, messages=_PRODUCED),
    "MQTT 5, 1 x 200": MqttLoad(version=5, window=200, messages=_PRODUCED),
    "MQTT 8 + 8": MqttLoad(producers=8, consumers=8, queues=8, window=100),
    "STOMP 8 + 8": Load(producers=8, consumers=8, queues=8, window=100),
}


def load_figures(name: str, runs: list[LoadFigures]) -> list[Figure]:
    """Return the figures of a load; those of MQTT are held against floors."""
    is_both = name.endswith("8 + 8")
    is_mqtt = name.startswith("MQTT")
    rates = [run.delivered_per_s if is_both else run.confirmed_per_s for run in runs]
    return [
        Figure(
            name=f"{name}: {'delivered' if is_both else 'confirmed'} a second",
            values=rates,
            bound=(100_000 if is_both else 200_000) if is_mqtt else None,
            at_least=True,
        ),
        Figure(name=f"{name}: p50 of confirms in us", values=[r.confirm_p50_us for r in runs]),
        Figure(
            name=f"{name}: CPU us a message",
            values=[run.cpu_us_per_message for run in runs],
            bound=4.0 if is_mqtt and not is_both else None,
        ),
    ]


def ratio_figures(found: dict[str, list[LoadFigures]]) -> list[Figure]:
    """Return what MQTT is per STOMP, round by round: the disk is noisy, the ratio is not."""
    figures = []
    for what in ("1 x 200", "8 + 8"):
        pairs = zip(found[f"MQTT {what}"], found[f"STOMP {what}"], strict=True)
        values = [mqtt.confirmed_per_s / stomp.confirmed_per_s for mqtt, stomp in pairs]
        figures.append(Figure(name=f"MQTT per STOMP, {what}", values=values))
    return figures


def idle_figures(runs: list[IdleFigures]) -> list[Figure]:
    """Return the figures of idle connections."""
    return [
        Figure(
            name=f"MiB with {runs[0].connections} idle connections",
            values=[run.with_bytes / _MIB for run in runs],
            bound=250,
        ),
        Figure(name="KiB a connection", values=[run.bytes_each / 1024 for run in runs]),
    ]


@click.command(context_settings={"show_default": True})
@click.option("--rounds", default=3, type=click.IntRange(1, 50))
@click.option("--connections", default=10_000, type=click.IntRange(1, 100_000))
@click.option("--set", "settings", multiple=True, help="A setting of the broker, NAME=VALUE.")
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the stores lie while a run lasts.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rounds: int, connections: int, settings: tuple[str, ...], directory: Path, strict: bool
) -> None:
    """Measure protocols: confirms, deliveries, CPU, and the memory of idle connections."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="protocols-"))
    found: dict[str, list[LoadFigures]] = {name: [] for name in LOADS}
    idle: list[IdleFigures] = []
    try:
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, commit {here.commit}\nstore: {here.filesystem}, write cache "
            f"{here.write_cache}, FUA {here.fua}\nbroker: D2, "
            f"{', '.join(settings) or 'default settings'}; 1 KiB; QoS 1, every message journalled "
            "for a persistent subscriber",
            highlight=False,
        )
        bytecode.compile_packages()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}", style="dim", highlight=False)
            for name, load in LOADS.items():
                place = Path(tempfile.mkdtemp(dir=folder))
                found[name].append(measurement.measure_load(place, load, settings))
                shutil.rmtree(place)
            place = Path(tempfile.mkdtemp(dir=folder))
            idle.append(measurement.measure_idle(place, connections, settings))
            shutil.rmtree(place)
    except (BrokerError, GeneratorError, ProtocolError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = [figure for name, runs in found.items() for figure in load_figures(name, runs)]
    figures += [*ratio_figures(found), *idle_figures(idle)]
    show(figures, "protocols", console)
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
