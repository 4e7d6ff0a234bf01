"""`python -m benchmarks.operator`: the operator's figures on a real API server.

Owns: the command line, the namespace, the floors and the table. Must never: be part of a test's
verdict on speed; run where another operator or anybody's Brokers are.
Called by `make bench-operator`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from benchmarks import bytecode, machine
from benchmarks.journal.__main__ import Figure, show
from benchmarks.operator import fake_node, first_ready, fleet, process, repair, rolling_restart
from benchmarks.operator.api import Api, ApiError, path_of
from vespiary_operator import kinds

_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_APPLY = "application/apply-patch+yaml"


def fleet_figures(found: fleet.Fleet) -> list[Figure]:
    """Return the figures of many Brokers."""
    count = found.brokers
    return [
        Figure(
            name=f"{count} Brokers: MiB at the most",
            values=[found.rss_peak_bytes / _MIB],
            bound=256,
        ),
        Figure(name="MiB at rest", values=[found.rss_bytes / _MIB]),
        Figure(name=f"s from the start to rest, {count} there", values=[found.start_s], bound=60),
        Figure(name="CPU s of that", values=[found.start_cpu_s]),
        Figure(name="writes of that", values=[found.start_writes], bound=0),
        Figure(name=f"s until {count} have their objects", values=[found.children_s]),
        Figure(name=f"s until {count} are Ready", values=[found.ready_s]),
        Figure(name="CPU s of the operator for that", values=[found.create_cpu_s]),
        Figure(name="ms a pass without a change", values=[found.pass_ms], bound=50),
        Figure(name="objects written at rest", values=[float(found.idle_writes)], bound=0),
        Figure(name="processors at rest", values=[found.idle_cores]),
    ]


def repair_figures(found: repair.Repairs) -> list[Figure]:
    """Return the figures of children that were tampered with."""
    return [
        Figure(name="s until an edit is put right", values=found.edit_s, bound=5),
        Figure(name="s until a deleted child is back", values=found.delete_s, bound=5),
    ]


def restart_figures(found: rolling_restart.Restarted) -> list[Figure]:
    """Return the figures of brokers that were restarted under their clients."""
    return [
        Figure(name="s until all three have a new setting", values=[found.seconds]),
        Figure(name="s without a receipt, each broker", values=found.away_s),
        Figure(name="messages confirmed", values=[float(found.confirmed)]),
        Figure(name="confirmed messages lost", values=[float(found.lost)], bound=0),
    ]


def _refuse_others(api: Api) -> None:
    """Refuse a cluster in which somebody uses Vespiary."""
    selector = "app.kubernetes.io/name=vespiary,app.kubernetes.io/component=operator"
    if api.items("/apis/apps/v1/deployments", labelSelector=selector):
        raise process.OperatorError("an operator runs in this cluster; its figures would be mixed")
    with contextlib.suppress(ApiError):
        there = api.items(path_of(kinds.BROKER))
        if there:
            name = there[0]["metadata"]["name"]
            raise process.OperatorError(f"there are Brokers in this cluster, such as {name}")


def _apply_definitions(api: Api) -> None:
    collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in sorted((_ROOT / "crds").glob("*.yaml")):
        document = yaml.safe_load(file.read_text("utf-8"))
        name = document["metadata"]["name"]
        path = f"{collection}/{name}?fieldManager=helm&force=true"  # which a chart may change later
        api.call("PATCH", path, document, _APPLY)
    deadline = time.monotonic() + 30
    while True:
        try:
            api.items(path_of(kinds.BROKER))
        except ApiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


@contextlib.contextmanager
def _namespace(api: Api) -> Iterator[str]:
    """Have a namespace; wait until all of it is gone again."""
    name = f"vespiary-benchmark-{int(time.time())}"
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    api.call("POST", "/api/v1/namespaces", document)
    try:
        yield name
    finally:
        path = f"/api/v1/namespaces/{name}"
        api.remove(path)
        deadline = time.monotonic() + 300
        while api.find(path) is not None and time.monotonic() < deadline:
            time.sleep(1)


def _measure(
    api: Api, folder: Path, *, brokers: int, rounds: int, image: str, console: Console
) -> list[Figure]:
    figures: list[Figure] = []
    if image:
        with _namespace(api) as namespace, process.running(folder, broker_image=image):
            seconds = first_ready.measure(api, namespace, rounds=rounds)
        found = [Figure(name="s from apply to Ready, image present", values=seconds, bound=20)]
        show(found, "one Broker, four volumes, a real node", console)
        figures += found
        with _namespace(api) as namespace, process.running(folder, broker_image=image):
            restarted = rolling_restart.measure(api, namespace)
        found = restart_figures(restarted)
        show(found, "three brokers restarted one after the other, each with a client", console)
        figures += found
    with fake_node.present(api) as node:
        image = "vespiary/broker:benchmark"
        with _namespace(api) as namespace:
            with process.running(folder, broker_image=image):
                api.call("POST", path_of(kinds.BROKER, namespace), fleet.broker(0, node))
                first_ready.wait_ready(api, namespace, "fleet-0000")
                repairs = repair.measure(api, namespace, "fleet-0000")
            found = repair_figures(repairs)
            show(found, "children of one Broker", console)
            figures += found
        if brokers:
            with _namespace(api) as namespace:
                many = fleet.measure(api, namespace, node, folder, count=brokers)
                found = fleet_figures(many)
                show(found, "many Brokers, pods without a machine", console)
                figures += found
    return figures


@click.command(context_settings={"show_default": True})
@click.option("--brokers", default=500, type=click.IntRange(0, 5000), help="0 leaves them out.")
@click.option("--rounds", default=3, type=click.IntRange(1, 20), help="Real Brokers, one by one.")
@click.option(
    "--broker-image",
    default="",
    help="Image of real brokers, present on the node; without one no real pod is started.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(brokers: int, rounds: int, broker_image: str, strict: bool) -> None:
    """Measure the operator of this tree, as a process, on the cluster that KUBECONFIG names."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="vespiary-operator-"))
    try:
        api = Api()
        here = machine.describe(folder)
        version = api.call("GET", "/version")["gitVersion"]
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, commit {here.commit}\nKubernetes {version}; operator: default "
            "settings, a process on this machine; Brokers of the fleet: one replica, ephemeral "
            "volumes, every pod Ready at once",
            highlight=False,
        )
        _refuse_others(api)
        bytecode.compile_packages()
        _apply_definitions(api)
        figures = _measure(
            api, folder, brokers=brokers, rounds=rounds, image=broker_image, console=console
        )
    except (process.OperatorError, ApiError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
