"""What a Broker names and what is missing, wrong or somebody else's is said by name, with a cure.

Each Broker here has another fault, and all of them are made at once; what is put right is then
taken up without another change of the Broker.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from vespiary_testkit.certificates import Authority
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

FIXED_SIZE = "local-fuse"
"""A class whose claims cannot grow."""


def secret(name: str, **values: str) -> dict[str, Any]:
    data = {key.replace("_", "."): value for key, value in values.items()}
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def with_users(name: str, secret_name: str) -> dict[str, Any]:
    return small_broker(name, auth={"secretName": secret_name})


def with_tls(name: str, secret_name: str) -> dict[str, Any]:
    acceptor = {"name": "secure", "port": 61617, "tls": {"secretName": secret_name}}
    return small_broker(name, acceptors=[acceptor])


def of_class(name: str, storage_class: str) -> dict[str, Any]:
    """Return a Broker on a class of fuse; it starts, or a while later it would say only why not."""
    document = small_broker(name)
    document["spec"]["storage"]["volumes"]["journal"]["storageClassName"] = storage_class
    document["spec"]["storage"]["filesystemPolicy"] = {"allow": ["ext4", "xfs", "fuse"]}
    return document


class Brokers:
    """What the Brokers of a namespace say."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def says(self, name: str, kind: str, reason: str, *words: str) -> dict[str, Any]:
        """Return a condition once it has a reason and every one of these words."""

        def look() -> dict[str, Any] | None:
            found = self._cluster.condition(name, self._namespace, kind)
            is_said = all(word in found.get("message", "") for word in words)
            return found if found.get("reason") == reason and is_said else None

        return wait_for(f"{kind} of {name} says {reason}: {words}", look)


def test_what_is_missing_wrong_or_anothers_is_named(
    cluster: KubernetesCluster, namespace: str
) -> None:
    others = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken"},
        "spec": {"ports": [{"name": "web", "port": 80}], "selector": {"app": "shop"}},
    }
    garbage = {"tls_crt": "no certificate", "tls_key": "no key"}
    in_namespace = [
        others,
        secret("empty"),
        secret("logins", alice="wonderland"),
        secret("garbage", **garbage),
        small_broker("taken"),
        with_users("no-logins", "nowhere"),
        with_users("no-users", "empty"),
        with_users("no-admin", "logins"),
        with_tls("no-cert", "missing"),
        with_tls("bad-cert", "garbage"),
        of_class("fixed", FIXED_SIZE),
    ]
    if cluster.get("storageclass", FIXED_SIZE) is None:
        pytest.skip(f"the cluster has no storage class {FIXED_SIZE}")
    brokers = Brokers(cluster, namespace)
    try:
        cluster.apply({"apiVersion": "v1", "kind": "List", "items": in_namespace}, namespace)
        for kind, reason in (("Ready", "NameTaken"), ("Degraded", "NameTaken")):
            brokers.says(
                *("taken", kind, reason, "The Service taken belongs to somebody else"),
                "Delete it, or give the Broker another name",
            )
        for kind in ("Ready", "Degraded", "ConfigApplied"):
            brokers.says(
                *("no-logins", kind, "SecretUnusable", "The Secret nowhere that"),
                "spec.auth.secretName names does not exist. Create it with a key for each user",
            )
        brokers.says("no-users", "Ready", "SecretUnusable", "Secret empty", "names no user")
        for name in ("taken", "no-logins", "no-users"):
            assert cluster.get("statefulset", name, namespace) is None
        look_at_certificates(cluster, namespace, brokers)
        look_at_growth(cluster, namespace, brokers)
        brokers.says(
            *("no-admin", "ConfigApplied", "NotReported"), "the Secret logins has no user `admin`"
        )
        put_right(cluster, namespace, brokers)
    finally:
        cluster.kubectl("delete", "br", "--all", "-n", namespace, "--wait=false")


def look_at_certificates(cluster: KubernetesCluster, namespace: str, brokers: Brokers) -> None:
    for name, words in (
        ("no-cert", "The Secret missing does not exist"),
        ("bad-cert", "tls.crt of the Secret garbage is no certificate"),
    ):
        said = brokers.says(name, "CertificateValid", "SecretUnusable", "Acceptor secure", words)
        assert (
            "Put a certificate and its key into it (`kubectl create secret tls" in said["message"]
        )
        brokers.says(name, "Ready", "SecretUnusable", words)
        brokers.says(name, "Degraded", "SecretUnusable", words)


def look_at_growth(cluster: KubernetesCluster, namespace: str, brokers: Brokers) -> None:
    brokers.says("fixed", "VolumesSized", "AsAsked")
    size = {"spec": {"storage": {"volumes": {"journal": {"size": "512Mi"}}}}}
    cluster.kubectl("-n", namespace, "patch", "br", "fixed", "--type=merge", "-p", json.dumps(size))
    words = (
        "The claim journal-fixed-0 cannot grow from 268435456 to 536870912 bytes",
        f"its storage class {FIXED_SIZE} does not allow it",
        "Set allowVolumeExpansion: true there, if its driver can, or ask for the former size",
    )
    brokers.says("fixed", "VolumesSized", "GrowthRefused", *words)
    brokers.says("fixed", "Degraded", "NotAsAsked", *words)


def put_right(cluster: KubernetesCluster, namespace: str, brokers: Brokers) -> None:
    """What was missing is made, and what stood in the way is gone."""
    cluster.kubectl("-n", namespace, "delete", "service", "taken")
    leaf = Authority().sign("one.example")
    made = [
        secret("nowhere", admin="the-first"),
        secret("missing", tls_crt=leaf.certificate.decode(), tls_key=leaf.key.decode()),
    ]
    cluster.apply({"apiVersion": "v1", "kind": "List", "items": made}, namespace)
    for name in ("taken", "no-logins", "no-cert"):
        # A kubelet that found a Secret missing tries again after two minutes at most.
        cluster.wait_until_ready(name, namespace, timeout_s=600)
