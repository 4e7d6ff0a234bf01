"""The chart's admission policies on a real API server: what each refuses, and what it takes."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    SYSTEM_NAMESPACE,
    KubernetesCluster,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.verify]

SETTINGS = (
    "admissionPolicies.confirmDeletion=true",
    "admissionPolicies.allowedImages={vespiary,registry.example.com/team/}",
    "admissionPolicies.restrictOverrides=true",
    "admissionPolicies.restrictScaleDown=true",
)
CLAIM_LABELS = {"app.kubernetes.io/name": "vespiary", "app.kubernetes.io/component": "broker"}


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: KubernetesCluster) -> Iterator[None]:
    """Have every policy switched on; wait until the API server holds to each of them."""
    cluster.install(*SETTINGS)
    name = f"e2e-admission-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    try:
        wait_for_policies(cluster, name)
        yield
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        cluster.install()


def wait_for_policies(cluster: KubernetesCluster, namespace: str) -> None:
    """Have each of them refuse something: the API server reads them one after the other."""
    account = make_editor(cluster, namespace)
    cluster.kubectl(
        *("-n", namespace, "create", "role", "probe"),
        *("--verb=get,patch,update", "--resource=brokers.vespiary.dev/scale"),
    )
    cluster.kubectl(
        *("-n", namespace, "create", "rolebinding", "probe", "--role=probe"),
        f"--serviceaccount={namespace}:editor",
    )
    broker = small_broker("probe", replicas=1, topology="Independent", paused=True)
    broker["spec"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    cluster.apply(broker, namespace)
    metadata = {"name": "journal-probe-0", "labels": CLAIM_LABELS}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    size = {"requests": {"storage": "64Mi"}}
    cluster.apply(
        claim | {"spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}, namespace
    )
    elsewhere = small_broker("other", image="elsewhere/broker:1")
    unsafe = small_broker("other")
    unsafe["spec"]["storage"]["filesystemPolicy"] = {"allow": ["nfs4"]}
    forced = small_broker("other", scaleDown={"force": True})
    scale = ("-n", namespace, "scale", BROKER, "probe", "--replicas=0", "--dry-run=server")
    refusals: list[tuple[str, Callable[[], subprocess.CompletedProcess[str]]]] = [
        ("images of Brokers come from", lambda: create(cluster, elsewhere, namespace)),
        (
            "filesystemPolicy lets in nfs4",
            lambda: create(cluster, unsafe, namespace, "--as", account),
        ),
        ("puts aside what protects", lambda: create(cluster, forced, namespace, "--as", account)),
        (
            "gives probe fewer replicas only",
            lambda: cluster.kubectl(*scale, "--as", account, check=False),
        ),
        (
            "the messages of this Broker go with it",
            lambda: delete(cluster, namespace, BROKER, "probe"),
        ),
        (
            "this claim holds messages",
            lambda: delete(cluster, namespace, "pvc", "journal-probe-0"),
        ),
    ]
    for words, ask in refusals:
        wait_for(
            f"the API server refuses: {words}",
            lambda words=words, ask=ask: words in ask().stderr,  # type: ignore[misc]
        )


def create(
    cluster: KubernetesCluster, document: dict[str, Any], namespace: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl(
        *("-n", namespace, "create", "--dry-run=server", "-f", "-", *flags),
        stdin=json.dumps(document),
        check=False,
    )


def test_the_api_server_finds_nothing_wrong_with_their_expressions(
    cluster: KubernetesCluster,
) -> None:
    def checked() -> list[dict[str, Any]] | None:
        found = json.loads(
            cluster.kubectl("get", "validatingadmissionpolicies", "-o", "json").stdout
        )["items"]
        ours = [p for p in found if p["metadata"]["name"].startswith("vespiary-")]
        done = [p for p in ours if "typeChecking" in (p.get("status") or {})]
        return ours if len(done) == 6 else None

    for policy in wait_for("the types of six policies are checked", checked):
        warnings = policy["status"]["typeChecking"].get("expressionWarnings")
        assert not warnings, json.dumps(warnings, indent=1)


@pytest.mark.parametrize(
    ("image", "is_taken"),
    [
        ("vespiary/broker:1", True),
        ("registry.example.com/team/broker@sha256:" + "0" * 64, True),
        ("registry.example.com/team-b/broker:1", False),
        ("registry.example.com/broker:1", False),
        ("vespiary-evil/broker:1", False),
    ],
)
def test_images_come_from_the_places_that_are_allowed(
    cluster: KubernetesCluster, image: str, is_taken: bool
) -> None:
    done = create(cluster, small_broker("orders", image=image), "default")
    assert (done.returncode == 0) is is_taken, done.stderr
    if not is_taken:
        assert f"spec.image is {image}; images of Brokers come from vespiary, " in done.stderr


@pytest.fixture
def editor(cluster: KubernetesCluster, namespace: str) -> str:
    """Return an account that may edit everything in the namespace, as people may."""
    return make_editor(cluster, namespace)


def make_editor(cluster: KubernetesCluster, namespace: str) -> str:
    """Make that account, once it may."""
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "editor")
    cluster.kubectl(
        *("-n", namespace, "create", "rolebinding", "editor", "--clusterrole=edit"),
        f"--serviceaccount={namespace}:editor",
    )
    account = f"system:serviceaccount:{namespace}:editor"
    wait_for(
        "the cluster's role edit lets people make Brokers",
        lambda: (
            cluster.kubectl(
                *("-n", namespace, "auth", "can-i", "create", BROKER, "--as", account), check=False
            ).returncode
            == 0
        ),
    )
    return account


def test_unsafe_filesystems_take_a_right_of_their_own(
    cluster: KubernetesCluster, namespace: str, editor: str
) -> None:
    broker = small_broker("orders")
    policy = broker["spec"]["storage"].setdefault("filesystemPolicy", {})
    policy["allow"] = ["ext4", "xfs", "nfs4"]
    done = create(cluster, broker, namespace, "--as", editor)
    assert done.returncode != 0
    assert "spec.storage.filesystemPolicy lets in nfs4" in done.stderr
    assert (
        f'the verb "override" on brokers.vespiary.dev in the namespace {namespace}' in done.stderr
    )
    policy["allow"] = ["xfs"]
    policy["warn"] = ["btrfs"]
    assert create(cluster, broker, namespace, "--as", editor).returncode == 0, "it only narrows"
    policy["warn"] = ["nfs"]
    assert create(cluster, broker, namespace, "--as", editor).returncode != 0
    cluster.kubectl(
        *("-n", namespace, "create", "rolebinding", "override"),
        "--clusterrole=vespiary-override",
        f"--serviceaccount={namespace}:editor",
    )
    wait_for(
        "whoever has the verb may do it",
        lambda: create(cluster, broker, namespace, "--as", editor).returncode == 0,
    )


def test_what_somebody_else_let_in_may_stay_when_others_edit(
    cluster: KubernetesCluster, namespace: str, editor: str
) -> None:
    broker = small_broker("orders", replicas=0)
    broker["spec"]["storage"]["filesystemPolicy"] = {"allow": ["nfs4"]}
    cluster.apply(broker, namespace)  # the tests' own account may do everything
    done = patch(cluster, namespace, editor, {"spec": {"podLabels": {"team": "red"}}})
    assert done.returncode == 0, done.stderr
    more = {"spec": {"storage": {"filesystemPolicy": {"allow": ["nfs4", "cifs"]}}}}
    done = patch(cluster, namespace, editor, more)
    assert done.returncode != 0
    assert "lets in cifs," in done.stderr


IGNORED = "vespiary.dev/ignore-maintenance-windows"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"spec": {"scaleDown": {"force": True}}}, "spec.scaleDown.force"),
        ({"spec": {"upgrade": {"allowFormatChange": True}}}, "spec.upgrade.allowFormatChange"),
        ({"metadata": {"annotations": {IGNORED: "true"}}}, f"the annotation {IGNORED}"),
    ],
)
def test_what_puts_protection_aside_takes_the_right(
    cluster: KubernetesCluster, namespace: str, editor: str, change: dict[str, Any], named: str
) -> None:
    cluster.apply(small_broker("orders", replicas=0), namespace)
    done = patch(cluster, namespace, editor, change)
    assert done.returncode != 0
    assert f"{named} puts aside what protects messages or service" in done.stderr
    no = json.loads(json.dumps(change).replace("true", "false"))
    done = patch(cluster, namespace, editor, no)
    assert done.returncode == 0, done.stderr
    text = json.dumps(change)
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)
    done = patch(cluster, namespace, editor, {"spec": {"podLabels": {"team": "red"}}})
    assert done.returncode == 0, f"somebody else set it: {done.stderr}"


def test_scaling_down_by_the_subresource_takes_the_right(
    cluster: KubernetesCluster, namespace: str, editor: str
) -> None:
    broker = small_broker("orders", replicas=2, topology="Independent", paused=True)
    cluster.apply(broker, namespace)
    for kind in ("role", "rolebinding"):
        flags = ["--verb=get,patch,update", "--resource=brokers.vespiary.dev/scale"]
        if kind == "rolebinding":
            flags = ["--role=scaler", f"--serviceaccount={namespace}:editor"]
        cluster.kubectl("-n", namespace, "create", kind, "scaler", *flags)

    def scale(replicas: int) -> subprocess.CompletedProcess[str]:
        return cluster.kubectl(
            *("-n", namespace, "scale", BROKER, "orders", f"--replicas={replicas}"),
            *("--as", editor),
            check=False,
        )

    wait_for("the right to scale up", lambda: scale(3).returncode == 0)
    done = scale(1)
    assert done.returncode != 0
    assert "scale gives orders fewer replicas only for those with the verb" in done.stderr
    done = patch(cluster, namespace, editor, {"spec": {"replicas": 1}})
    assert done.returncode == 0, done.stderr


def patch(
    cluster: KubernetesCluster, namespace: str, account: str, change: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl(
        *("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", json.dumps(change)),
        *("--as", account),
        check=False,
    )


def delete(
    cluster: KubernetesCluster, namespace: str, kind: str, name: str
) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl(
        *("-n", namespace, "delete", kind, name, "--dry-run=server"), check=False
    )


def test_what_holds_messages_is_deleted_by_those_who_say_its_name(
    cluster: KubernetesCluster, namespace: str
) -> None:
    broker = small_broker("orders")
    broker["spec"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    cluster.apply(broker, namespace)
    cluster.wait_until_ready("orders", namespace)
    for kind, name in ((BROKER, "orders"), ("pvc", "journal-orders-0")):
        done = delete(cluster, namespace, kind, name)
        assert done.returncode != 0, kind
        assert f"vespiary.dev/confirm-deletion={name}" in done.stderr
        for value, is_taken in (("yes", False), (name, True)):
            cluster.kubectl(
                *("-n", namespace, "annotate", "--overwrite", kind, name),
                f"vespiary.dev/confirm-deletion={value}",
            )
            done = delete(cluster, namespace, kind, name)
            assert (done.returncode == 0) is is_taken, done.stderr
    # A claim of somebody else's is nobody's business here, and neither is a Broker that keeps its.
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", KEEP)
    cluster.kubectl("-n", namespace, "annotate", BROKER, "orders", "vespiary.dev/confirm-deletion-")
    assert delete(cluster, namespace, BROKER, "orders").returncode == 0


KEEP = '{"spec": {"storage": {"retention": {"whenDeleted": "Retain"}}}}'


def test_a_namespace_takes_its_brokers_and_claims_with_it(cluster: KubernetesCluster) -> None:
    name = f"e2e-gone-{uuid.uuid4().hex[:8]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    broker = small_broker("orders")
    broker["spec"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    cluster.apply(broker, name)
    wait_for("there are claims", lambda: cluster.items("pvc", name))
    cluster.kubectl("delete", "namespace", name, "--timeout=300s", timeout_s=310)
    assert cluster.get("namespace", name) is None


def test_children_go_with_their_broker_and_the_operator_is_not_held_up(
    cluster: KubernetesCluster, namespace: str
) -> None:
    broker = small_broker("orders")
    broker["metadata"]["annotations"] = {"vespiary.dev/confirm-deletion": "orders"}
    broker["spec"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    cluster.apply(broker, namespace)
    cluster.wait_until_ready("orders", namespace)
    cluster.kubectl("-n", namespace, "delete", BROKER, "orders", "--timeout=100s")
    wait_for("the claims went with it", lambda: not cluster.items("pvc", namespace))
    assert cluster.items("pods", SYSTEM_NAMESPACE, "app.kubernetes.io/component=operator")
