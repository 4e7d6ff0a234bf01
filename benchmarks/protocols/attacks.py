"""`python -m benchmarks.protocols.attacks`: what a side flow feels of hostile clients.

Owns: the command line, the classes of attack, their floors and the table. Must never: be part of a
test's verdict on speed. Called by `make bench-attacks`.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console

from benchmarks import bytecode, generator, machine
from benchmarks.broker import BrokerError, RunningBroker, running_broker
from benchmarks.generator import GeneratorError, Load, LoadReport
from benchmarks.journal.__main__ import Figure, show
from benchmarks.protocols import hostile
from benchmarks.protocols.hostile import Attack, Wave

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1 << 20
RATIO_MOST = 2.0
MEMORY_MOST_MIB = 64.0
_TLS = "stomp"
_OPENSSL = 4
_FLOODERS = 4
_CONNECTIONS = 1000


class AttackClass(msgspec.Struct, frozen=True):
    """A kind of attack: who attacks which listener, with how many connections at a time."""

    attack: Attack
    listener: str
    connections: int


def _classes() -> dict[str, AttackClass]:
    found = {
        "half-open handshakes": AttackClass(hostile.half_open, _TLS, _CONNECTIONS),
        "KeyUpdate flood": AttackClass(hostile.key_updates, _TLS, _OPENSSL),
        "renegotiation flood": AttackClass(hostile.renegotiations, _TLS, _OPENSSL),
    }
    for protocol in ("STOMP", "MQTT", "AMQP"):
        flood, readers = hostile.subscribe_flood(protocol), hostile.slow_readers(protocol)
        found[f"SUBSCRIBE flood, {protocol}"] = AttackClass(flood, "all", _FLOODERS)
        found[f"slow readers, {protocol}"] = AttackClass(readers, "all", 100)
        writers = hostile.slow_writers(protocol)
        found[f"slow writers, {protocol}"] = AttackClass(writers, "all", _CONNECTIONS)
    return found


CLASSES = _classes()


class AttackFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One attack: 99th percentile of the side flow's confirms, and the broker's memory."""

    quiet_p99_us: float
    attacked_p99_us: float
    memory_bytes: int
    connections: int

    @property
    def ratio(self) -> float:
        """What the side flow waits longer."""
        return self.attacked_p99_us / self.quiet_p99_us


class AttackError(Exception):
    """A run's figures count for nothing."""


def figures_of(name: str, runs: list[AttackFigures]) -> list[Figure]:
    """Return the figures of a class of attack, held against its floors."""
    return [
        Figure(name=f"{name}: p99 quiet, us", values=[run.quiet_p99_us for run in runs]),
        Figure(name=f"{name}: p99 attacked, us", values=[run.attacked_p99_us for run in runs]),
        Figure(name=f"{name}: ratio", values=[run.ratio for run in runs], bound=RATIO_MOST),
        Figure(
            name=f"{name}: MiB more",
            values=[run.memory_bytes / _MIB for run in runs],
            bound=MEMORY_MOST_MIB,
        ),
        Figure(name=f"{name}: connections", values=[float(run.connections) for run in runs]),
    ]


def measure_attack(
    folder: Path, kind: AttackClass, seconds: float, rate: float, settings: tuple[str, ...]
) -> AttackFigures:
    """Run a side flow on a fresh broker, first alone and then under an attack.

    Args:
        folder: An empty folder for the store.
        kind: The attack.
        seconds: How long each half is.
        rate: Messages a second of the side flow.
        settings: Of the broker, `NAME=VALUE`.

    Raises:
        AttackError: The side flow lost something, or the attack never got through.
        BrokerError, GeneratorError: A part of the measurement could not run.
    """
    certificate, key = hostile.make_certificate(folder)
    tls = (f"acceptors.{_TLS}.tls.certificate={certificate}", f"acceptors.{_TLS}.tls.key={key}")
    load = Load(consumers=1, window=100, rate=rate, warmup=1.0, seconds=seconds)
    all_of = (*tls, *settings)
    binary = generator.build(generator.BINARY)
    with _apart() as (own, theirs), running_broker(folder / "data", settings=all_of) as broker:
        for task in Path(f"/proc/{broker.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), own)
        quiet = _side_flow(broker, binary, load)
        before = broker.usage().rss_bytes
        wave = Wave(broker.ports[kind.listener], kind.connections)
        most: list[int] = []
        with hostile.attacked(kind.attack, wave, theirs):
            attacked = generator.run_load(
                *(binary, broker.port, load),
                on_measuring=lambda: most.append(broker.usage().rss_bytes),
                on_measured=lambda: most.append(broker.usage().rss_bytes),
            )
    _check(attacked)
    if not wave.opened or not most:
        raise AttackError("the attack did not begin")
    return AttackFigures(
        quiet_p99_us=quiet.confirm_latency_us.p99,
        attacked_p99_us=attacked.confirm_latency_us.p99,
        memory_bytes=max(most) - before,
        connections=wave.opened,
    )


@contextlib.contextmanager
def _apart() -> Iterator[tuple[set[int], set[int]]]:
    """Give broker and side flow, and the attackers, processors of their own while it lasts."""
    every = os.sched_getaffinity(0)
    last = {max(every)}
    own, theirs = (every - last, last) if len(every) > 1 else (every, every)
    os.sched_setaffinity(0, own)  # the side flow inherits it
    try:
        yield own, theirs
    finally:
        os.sched_setaffinity(0, every)


def _side_flow(broker: RunningBroker, binary: Path, load: Load) -> LoadReport:
    return _check(generator.run_load(binary, broker.port, load))


def _check(report: LoadReport) -> LoadReport:
    if not report.passed or not report.confirm_latency_us.count:
        raise AttackError(f"the side flow found: {report.reason} {report.checks}")
    return report


@click.command(context_settings={"show_default": True})
@click.option("--rounds", default=3, type=click.IntRange(1, 50))
@click.option("--seconds", default=4.0, type=click.FloatRange(0.5, 600))
@click.option("--rate", default=2000.0, type=click.FloatRange(10, 100_000), help="Side flow.")
@click.option("--only", multiple=True, type=click.Choice(sorted(CLASSES)), help="Classes to run.")
@click.option("--set", "settings", multiple=True, help="A setting of the broker, NAME=VALUE.")
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the stores lie while a run lasts.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rounds: int,
    seconds: float,
    rate: float,
    only: tuple[str, ...],
    settings: tuple[str, ...],
    directory: Path,
    strict: bool,
) -> None:
    """Measure what hostile clients cost others: p99 of a side flow, and memory."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="attacks-"))
    chosen = {name: kind for name, kind in CLASSES.items() if not only or name in only}
    found: dict[str, list[AttackFigures]] = {name: [] for name in chosen}
    try:
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, Linux {here.kernel}, commit {here.commit}\n"
            f"broker: D2, {', '.join(settings) or 'default settings'}; side flow: {rate:g} "
            "messages of 1 KiB a second by STOMP; the attackers have a processor of their own",
            highlight=False,
        )
        bytecode.compile_packages()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}", style="dim", highlight=False)
            for name, kind in chosen.items():
                place = Path(tempfile.mkdtemp(dir=folder))
                found[name].append(measure_attack(place, kind, seconds, rate, settings))
                shutil.rmtree(place)
    except (BrokerError, GeneratorError, AttackError, subprocess.CalledProcessError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = [figure for name, runs in found.items() for figure in figures_of(name, runs)]
    show(figures, "attacks", console)
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
