"""The cluster of the e2e tests, a namespace for each, and what is shown when one fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from vespiary_spec.version import VERSION
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, NoCluster, installed
from vespiary_testkit.kubernetes_cluster import cluster as found_cluster
from vespiary_testkit.operator_rights import OperatorRights

_PHASE = pytest.StashKey[dict[str, bool]]()


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[KubernetesCluster]:
    """Yield a cluster as it was found; kubectl and helm are on PATH, and KUBECONFIG is set."""
    try:
        with found_cluster() as found:
            yield found
    except NoCluster as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def cluster(bare_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """Yield a cluster in which the chart is installed from this tree."""
    try:
        with installed(bare_cluster), OperatorRights(VERSION).collecting() as collected:
            bare_cluster.rights = collected
            yield bare_cluster
    except NoCluster as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def rights(cluster: KubernetesCluster) -> OperatorRights:
    """Return what all operators of the session asked for so far."""
    assert cluster.rights is not None
    return cluster.rights


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash.setdefault(_PHASE, {})[report.when] = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture
def namespace(cluster: KubernetesCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace that enforces the `restricted` profile; it is deleted afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        }
    )
    try:
        yield name
    finally:
        if request.node.stash.get(_PHASE, {}).get("call", False):
            print(cluster.describe(name))
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
