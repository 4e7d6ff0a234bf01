"""`fs.aio-max-nr` of a real node: brokers wait for it, tunings raise it, and nothing lowers it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import (
    TUNING,
    TUNING_NAMESPACE,
    KubernetesCluster,
    run,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.verify]

KNOB = "/proc/sys/fs/aio-max-nr"
TUNER = "app.kubernetes.io/component=node-tuning"
BROKERS = "app.kubernetes.io/component=broker"
PUT_RIGHT_S = 120
LOOKS = 5
"""At the requests in use, that see the same."""


@pytest.fixture(autouse=True)
def node_value(cluster: KubernetesCluster) -> Iterator[int]:
    """Yield the machine's fs.aio-max-nr, and put it back: the tests change it for real."""
    if cluster.script is None:
        pytest.skip("raising fs.aio-max-nr would change a node that is not ours to change")
    before = knob(cluster)
    wait_for(
        "brokers of earlier tests have given back what they held",
        lambda: (
            not json.loads(
                cluster.kubectl("get", "pods", "-A", "-l", BROKERS, "-o", "json").stdout
            )["items"]
        ),
        240,
    )
    try:
        yield before
    finally:
        set_mode(cluster, "Verify")
        wait_for(
            "no tuning pod is left to raise the value again",
            lambda: not cluster.items("pods", TUNING_NAMESPACE, TUNER),
            180,
        )
        set_knob(cluster, before)
        assert knob(cluster) == before


def knob(cluster: KubernetesCluster) -> int:
    return int(run(str(cluster.script), "enter", "cat", KNOB).stdout)


def in_use(cluster: KubernetesCluster) -> int:
    """Return the AIO requests in use, once they stay: who has ended gives back a little later."""
    seen: list[int] = []

    def stays() -> bool:
        seen.append(int(run(str(cluster.script), "enter", "cat", "/proc/sys/fs/aio-nr").stdout))
        return len(seen) >= LOOKS and len(set(seen[-LOOKS:])) == 1

    wait_for("the AIO requests in use stay the same", stays, 60, pause_s=0.5)
    return seen[-1]


def set_knob(cluster: KubernetesCluster, value: int) -> None:
    run(str(cluster.script), "enter", "sh", "-c", f"echo {value} > {KNOB}")


def set_mode(cluster: KubernetesCluster, mode: str, name: str = "default", **spec: Any) -> None:
    cluster.apply(
        {
            "apiVersion": "vespiary.dev/v1beta1",
            "kind": "BrokerNodeTuning",
            "metadata": {"name": name},
            "spec": {"mode": mode, **spec},
        }
    )


def status(cluster: KubernetesCluster, name: str = "default") -> dict[str, Any]:
    found = cluster.get(TUNING, name) or {}
    status: dict[str, Any] = found.get("status") or {}
    return status


def node_of(cluster: KubernetesCluster) -> dict[str, Any]:
    nodes = status(cluster).get("nodes") or [{}]
    found: dict[str, Any] = nodes[0]
    return found


def condition(cluster: KubernetesCluster, kind: str, name: str = "default") -> dict[str, Any]:
    conditions = status(cluster, name).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def wait_for_node(cluster: KubernetesCluster, what: str, **fields: Any) -> None:
    """Wait until the status says all of this of the node at once."""
    wait_for(what, lambda: fields.items() <= node_of(cluster).items(), 240)


def seconds_until(what: str, look: Any, timeout_s: float) -> float:
    started_s = time.monotonic()
    wait_for(what, look, timeout_s, pause_s=0.2)
    return time.monotonic() - started_s


def test_a_broker_waits_for_its_node_and_starts_as_soon_as_there_is_room(
    cluster: KubernetesCluster, namespace: str
) -> None:
    set_knob(cluster, in_use(cluster) + 100)
    cluster.apply(small_broker("orders"), namespace)
    tuned = cluster.wait_for_condition("orders", namespace, "NodeTuned", "False")
    assert tuned["reason"] == "AioShortage"
    assert "The broker waits for AIO requests: 500 AIO operations are needed" in tuned["message"]
    wait_for(
        "the reason why it is not ready",
        lambda: cluster.condition("orders", namespace, "Ready").get("reason") == "WaitingForNode",
        120,
    )
    cluster.wait_for_condition("orders", namespace, "Ready", "False")

    def told() -> dict[str, Any] | None:
        found = condition(cluster, "Ready")
        return found if found.get("reason") == "NotEnough" else None

    lacking = wait_for("mode Verify tells of the node", told, 240)
    assert "sysctl -w fs.aio-max-nr=" in lacking["message"]

    set_knob(cluster, in_use(cluster) + 1000)
    took_s = seconds_until(
        "the broker is ready",
        lambda: cluster.condition("orders", namespace, "Ready").get("status") == "True",
        240,
    )
    print(f"ready {took_s:.1f} s after there was room")
    engine = cluster.wait_for_condition("orders", namespace, "JournalEngine", "True")
    assert "ASYNCIO" in engine["message"]
    cluster.wait_for_condition("orders", namespace, "NodeTuned", "True")
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    counts = [s["restartCount"] for s in pod["status"]["containerStatuses"]]
    counts += [s["restartCount"] for s in pod["status"]["initContainerStatuses"]]
    assert counts == [0, 0], "it waited, and was not started over and over"


def test_raise_follows_demand_and_puts_right_what_others_change(
    cluster: KubernetesCluster, namespace: str, node_value: int
) -> None:
    low = in_use(cluster) + 50
    set_knob(cluster, low)
    set_mode(cluster, "Raise", floor=1, margin=20)
    wait_for(
        "the node has what little is asked for",
        lambda: node_of(cluster).get("satisfied") and node_of(cluster).get("aioMaxNr") == low,
        240,
    )
    cluster.apply(small_broker("orders"), namespace)
    wait_for(
        "the pod has a node",
        lambda: (cluster.get("pod", "orders-0", namespace) or {}).get("spec", {}).get("nodeName"),
        120,
        pause_s=0.1,
    )
    took_s = seconds_until("the value is raised", lambda: knob(cluster) >= low + 450, 240)
    print(f"raised {took_s:.1f} s after the demand appeared")
    cluster.wait_until_ready("orders", namespace)
    cluster.wait_for_condition("orders", namespace, "JournalEngine", "True")
    raised = knob(cluster)
    wait_for_node(cluster, "the old value and the demand are told", raisedFrom=low, demand=500)

    two_brokers_need_the_sum(cluster, namespace, low)

    set_knob(cluster, low)
    took_s = seconds_until("drift is put right", lambda: knob(cluster) >= low + 450, PUT_RIGHT_S)
    print(f"drift put right in {took_s:.1f} s")

    reboot(cluster, low)
    wait_for_node(cluster, "the old value is still told", raisedFrom=low, satisfied=True)
    a_new_node_is_told(cluster)

    cluster.kubectl("-n", namespace, "delete", "brokers.vespiary.dev", "orders")
    wait_for("the pod is gone", lambda: not cluster.items("pods", namespace), 240)
    wait_for("the demand is gone", lambda: not node_of(cluster).get("demand"), 120)
    assert knob(cluster) >= min(raised, low + 450), "it is never lowered"


def two_brokers_need_the_sum(cluster: KubernetesCluster, namespace: str, low: int) -> None:
    """A second broker's demand comes on top of the first one's, as far as the maximum allows."""
    most = low + 600
    set_mode(cluster, "Raise", floor=1, margin=20, max=most)
    set_knob(cluster, low + 510)  # while the first one started it was counted twice
    cluster.apply(small_broker("second"), namespace)
    wait_for_node(cluster, "the demand is the sum", demand=1000)
    wait_for("the maximum is reached", lambda: knob(cluster) == most, 240)

    def lacks() -> bool:
        node = node_of(cluster)
        return node.get("satisfied") is False and str(most) in node.get("message", "")

    wait_for("the node is said to lack room", lacks, 240)
    assert condition(cluster, "Ready")["reason"] == "NotEnough"
    assert knob(cluster) == most, "not above the maximum, whatever is asked for"
    set_mode(cluster, "Raise", floor=1, margin=20)
    wait_for("both have room", lambda: knob(cluster) >= low + 950, 240)
    cluster.wait_until_ready("second", namespace)
    wait_for_node(cluster, "the node is satisfied", satisfied=True)
    cluster.kubectl("-n", namespace, "delete", "brokers.vespiary.dev", "second")
    wait_for_node(cluster, "its demand is gone", demand=500)
    assert knob(cluster) >= low + 950, "and the value stays"


def reboot(cluster: KubernetesCluster, low: int) -> None:
    """As after a reboot: the value is the kernel's again, and the tuning pod is a new one."""
    (former,) = cluster.items("pods", TUNING_NAMESPACE, TUNER)
    cluster.kubectl("-n", TUNING_NAMESPACE, "delete", "pod", "-l", TUNER, "--now")
    set_knob(cluster, low)
    took_s = seconds_until("a new tuning pod raises it", lambda: knob(cluster) > low, PUT_RIGHT_S)
    print(f"put right by a new tuning pod in {took_s:.1f} s")
    (after,) = cluster.items("pods", TUNING_NAMESPACE, TUNER)
    assert after["metadata"]["uid"] != former["metadata"]["uid"], "it was another pod"


def a_new_node_is_told(cluster: KubernetesCluster) -> None:
    """A node that appears is looked after from then on, and is not called good unseen."""
    new = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new", "labels": {"kubernetes.io/hostname": "new"}},
        "spec": {"taints": [{"key": "not-there", "effect": "NoSchedule"}]},
    }
    wait_for(
        "the tuning is satisfied", lambda: condition(cluster, "Ready").get("status") == "True", 240
    )
    cluster.apply(new)
    try:
        took_s = seconds_until("the new node is told", lambda: new_is_told(cluster), PUT_RIGHT_S)
        print(f"a new node is told after {took_s:.1f} s")
    finally:
        cluster.kubectl("delete", "node", "new")
    wait_for(
        "the node is forgotten", lambda: condition(cluster, "Ready").get("status") == "True", 120
    )


def new_is_told(cluster: KubernetesCluster) -> bool:
    """Whether the status has the new node, and says that nothing is known of it."""
    found = status(cluster)
    (ready,) = (c for c in found["conditions"] if c["type"] == "Ready")
    is_named = "new" in [node["name"] for node in found.get("nodes") or ()]
    said = (ready["status"], ready["reason"]) == ("Unknown", "NotKnownYet")
    return is_named and said and ready["message"].startswith("new: ")


def test_tunings_that_overlap_and_the_mode_for_openshift(
    cluster: KubernetesCluster, namespace: str
) -> None:
    (node,) = (item["metadata"] for item in cluster.items("nodes", ""))
    label = {"kubernetes.io/hostname": node["labels"]["kubernetes.io/hostname"]}
    set_mode(cluster, "Off", "special", nodeSelector=label)
    try:
        wait_for(
            "the one with fewer labels says whose the node is",
            lambda: condition(cluster, "Overlapping").get("status") == "True",
            120,
        )
        message = condition(cluster, "Overlapping")["message"]
        assert f"{node['name']} by special" in message
        assert not status(cluster).get("nodes")
        wait_for(
            "the other one has it",
            lambda: condition(cluster, "Overlapping", "special").get("status") == "False",
            120,
        )
    finally:
        cluster.kubectl("delete", TUNING, "special")
    wait_for(
        "the node is looked after by the default one again", lambda: node_of(cluster) != {}, 120
    )

    set_mode(cluster, "Tuned", floor=70000)
    wait_for(
        "without OpenShift's API it says so",
        lambda: condition(cluster, "Ready").get("reason") == "TunedNotServed",
        120,
    )
    cluster.apply(TUNED_DEFINITION)
    openshift = {"metadata": {"name": TUNED_NAMESPACE}, "apiVersion": "v1", "kind": "Namespace"}
    try:
        cluster.apply(openshift)
        cluster.kubectl(
            "wait", "--for=condition=Established", "crd/tuneds.tuned.openshift.io", "--timeout=110s"
        )
        profile = wait_for("the profile is made", lambda: tuned(cluster), 240)
        assert "fs.aio-max-nr=>" in profile["spec"]["profile"][0]["data"]
        name = profile["metadata"]["name"]
        wait_for("and named", lambda: status(cluster).get("profile") == name, 120)
        set_mode(cluster, "Verify")
        wait_for("the profile is deleted", lambda: not tuned(cluster), 120)
        wait_for("and forgotten", lambda: not status(cluster).get("profile"), 120)
    finally:
        set_mode(cluster, "Verify")
        cluster.kubectl("delete", "namespace", TUNED_NAMESPACE, "--wait=false", check=False)
        cluster.kubectl("delete", "crd", "tuneds.tuned.openshift.io", "--timeout=110s", check=False)


TUNED_NAMESPACE = "openshift-cluster-node-tuning-operator"


def tuned(cluster: KubernetesCluster) -> dict[str, Any] | None:
    name = "vespiary-node-tuning-default"
    return cluster.get("tuneds.tuned.openshift.io", name, TUNED_NAMESPACE)


TUNED_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "tuneds.tuned.openshift.io"},
    "spec": {
        "group": "tuned.openshift.io",
        "scope": "Namespaced",
        "names": {"kind": "Tuned", "plural": "tuneds", "singular": "tuned"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""As much of OpenShift's definition as a profile needs to be stored."""
