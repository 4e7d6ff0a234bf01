"""The operator behind an API server that fails in every way: it goes on, and does nothing twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vespiary_testkit.failure_checks import check_log, names_of, seen_pods
from vespiary_testkit.faulty_api import ALL_FAULTS, FaultyApi, faulty_api
from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for
from vespiary_testkit.local_operator import (
    LocalOperator,
    api_server,
    installed_operator_stopped,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

SEED = 20261123


@contextmanager
def operator_behind_faults(
    cluster: KubernetesCluster, folder: Path
) -> Iterator[tuple[LocalOperator, FaultyApi]]:
    url, tls = api_server(cluster)
    with installed_operator_stopped(cluster), faulty_api(url, tls, seed=SEED) as api:
        operator = LocalOperator(cluster, api.url, folder)
        operator.start()
        try:
            yield operator, api
        finally:
            operator.kill()
            print(f"{api.requests} requests, faults: {dict(api.came)}")
            print(operator.log[-12000:])


def check_nothing_is_doubled(cluster: KubernetesCluster, namespace: str) -> None:
    """Fail if anything is there twice, told twice, or still complained of.

    The last pass may have failed by a fault, so what the next one puts right is waited for.
    """

    def configs() -> list[str]:
        return [n for n in names_of(cluster, "configmap", namespace) if "orders-config-" in n]

    def complaints() -> list[str]:
        status = cluster.broker("orders", namespace)["status"]
        return [c["message"] for c in status["conditions"] if c["reason"] == "ApplyFailed"]

    wait_for("the settings before are put away", lambda: len(configs()) == 1)
    wait_for("what went wrong for a moment is not said any longer", lambda: not complaints())
    assert names_of(cluster, "statefulset", namespace) == ["orders"]
    assert names_of(cluster, "secret", namespace) == ["orders-credentials", "orders-users"]
    made = [
        event.get("note") or event["message"]
        for event in cluster.items("events", namespace)
        if event["involvedObject"].get("kind") == "Broker" and event["reason"] == "Created"
    ]
    assert len(made) == len(set(made)), f"told twice: {made}"


def draw_every_fault(cluster: KubernetesCluster, namespace: str, api: FaultyApi) -> None:
    """Give the operator something to do until every fault has come.

    How many passes there are before depends on how fast everything else is.
    """
    wanted = ALL_FAULTS | {"hang"}
    number = 0

    def have_come() -> bool:
        nonlocal number
        if wanted <= set(api.came):
            return True
        number += 1
        patch = json.dumps({"spec": {"addresses": [{"name": f"later-{number}"}]}})
        cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", patch)
        return False

    wait_for("every fault has come", have_come, pause_s=2)


def delete_and_wait(cluster: KubernetesCluster, namespace: str) -> None:
    """Delete the Broker; everything goes but the claims."""
    cluster.kubectl("-n", namespace, "delete", BROKER, "orders", "--wait=true")
    wait_for(
        "everything but the claims goes",
        lambda: (
            not any(
                names_of(cluster, kind, namespace)
                for kind in ("statefulset", "pod", "service", "secret", "configmap", "pdb")
            )
        ),
    )
    claims = cluster.items("pvc", namespace)
    assert [c["status"]["phase"] for c in claims] == ["Bound"] * 8


def test_a_broker_comes_changes_and_goes_while_the_api_server_fails(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    with seen_pods(namespace) as seen, operator_behind_faults(cluster, tmp_path) as (operator, api):
        document = small_broker("orders", topology="Independent", networkPolicy={"enabled": True})
        cluster.apply(document, namespace)
        cluster.wait_until_ready("orders", namespace)
        stateful_set = cluster.get("statefulset", "orders", namespace)
        password = cluster.password("orders", namespace)
        print(f"created after {time.monotonic() - began:.0f} s")

        document["spec"]["config"]["globalMaxSize"] = "64Mi"
        cluster.apply(document, namespace)
        api.hang_once()
        generation = cluster.broker("orders", namespace)["metadata"]["generation"]
        for kind in ("UpToDate", "Ready"):
            cluster.wait_for_condition("orders", namespace, kind, "True", generation=generation)
        print(f"changed after {time.monotonic() - began:.0f} s")

        document["spec"]["replicas"] = 2
        cluster.apply(document, namespace)
        wait_for(
            "two brokers serve",
            lambda: cluster.broker("orders", namespace)["status"].get("readyReplicas") == 2,
        )
        print(f"scaled after {time.monotonic() - began:.0f} s")
        draw_every_fault(cluster, namespace, api)
        print(f"every fault came after {time.monotonic() - began:.0f} s")
        assert not operator.has_ended
        api.is_faulty = False
        cluster.wait_for_condition(
            "orders",
            namespace,
            "Progressing",
            "False",
            generation=cluster.broker("orders", namespace)["metadata"]["generation"],
        )

        assert {name: len(uids) for name, uids in seen.uids.items()} == {
            "orders-0": 2,  # the first, and the one with the changed setting
            "orders-1": 1,
        }
        assert cluster.password("orders", namespace) == password
        now = cluster.get("statefulset", "orders", namespace)
        assert now is not None
        assert stateful_set is not None
        assert now["metadata"]["uid"] == stateful_set["metadata"]["uid"]
        check_nothing_is_doubled(cluster, namespace)

        api.is_faulty = True
        delete_and_wait(cluster, namespace)
        print(f"deleted after {time.monotonic() - began:.0f} s")
        assert not operator.has_ended
        check_log(operator.log)
