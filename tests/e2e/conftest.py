"""The cluster of the e2e tests, a namespace for each, and what is shown when one fails."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_spec.version import VERSION
from vespiary_testkit.kubernetes_cluster import (
    KubernetesCluster,
    NoCluster,
    build_pipeline_image,
    installed,
)
from vespiary_testkit.kubernetes_cluster import cluster as found_cluster
from vespiary_testkit.operator_rights import OperatorRights

_PHASE = pytest.StashKey[dict[str, bool]]()
_SHARED = pytest.StashKey[dict[str, str]]()
_RIGHTS = pytest.StashKey[OperatorRights]()
_COLLECTED = pytest.StashKey[set[str]]()
_RECORD = "VESPIARY_E2E_RECORD"
"""Names the file by which one session tells the next what it has seen; `make e2e` sets it."""
_LONGEST = (
    "test_operator_upgrade.py",
    "test_journal_archive.py",
    "test_chart_tools.py",
    "test_full_disk.py",
    "test_nfs_guest.py",
    "test_operator_resize.py",
)
"""What takes minutes. Of several processes none should begin it when the others are nearly done."""


# --- one installation for several processes -------------------------------------------------------


@contextlib.contextmanager
def _installed(found: KubernetesCluster) -> Iterator[OperatorRights]:
    """Have the chart in the cluster; what its operators ask for is collected, and recorded."""
    rights = OperatorRights(VERSION)
    record = Path(os.environ[_RECORD]) if _RECORD in os.environ else None
    if record is not None:
        rights.recall(record)
    with installed(found), rights.collecting():
        found.rights = rights
        yield rights
    if record is not None:  # its last words came when it was uninstalled
        rights.keep(record)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Install before the processes of pytest-xdist begin; they find it there."""
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    try:
        found = stack.enter_context(found_cluster())
        config.stash[_RIGHTS] = stack.enter_context(_installed(found))
    except NoCluster as reason:
        config.stash[_SHARED] = {"missing": str(reason)}
        return
    with contextlib.suppress(NoCluster):  # whoever needs it asks again, and says so
        build_pipeline_image(found)
    config.stash[_SHARED] = {
        "script": str(found.script or ""),
        "operator_image": found.operator_image,
        "broker_image": found.broker_image,
        "pipeline_image": found.pipeline_image,
    }


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["cluster"] = node.config.stash[_SHARED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Note which tests the operators are looked at for."""
    if _RIGHTS in node.config.stash:
        node.config.stash[_RIGHTS].tests |= set(ids)


def _shared(config: pytest.Config) -> dict[str, str] | None:
    """Return what the first process tells of the cluster; None where there is but one."""
    if not hasattr(config, "workerinput"):
        return None
    assert "cluster" in config.workerinput, "in several processes: `make e2e`, or pytest tests/e2e"
    found: dict[str, str] = config.workerinput["cluster"]
    return found


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse to run a test beside others that has to be alone."""
    is_alone = item.get_closest_marker("alone") is not None
    assert not (is_alone and hasattr(item.config, "workerinput")), "it has to run alone"


@pytest.fixture(scope="session")
def bare_cluster(request: pytest.FixtureRequest) -> Iterator[KubernetesCluster]:
    """Yield a cluster as it was found; kubectl and helm are on PATH, and KUBECONFIG is set."""
    shared = _shared(request.config)
    if shared is None:
        try:
            with found_cluster() as found:
                yield found
        except NoCluster as reason:
            pytest.skip(str(reason))
        return
    if "missing" in shared:
        pytest.skip(shared["missing"])
    found = KubernetesCluster(Path(shared["script"]) if shared["script"] else None)
    found.is_shared = True
    for name in ("operator_image", "broker_image", "pipeline_image"):
        setattr(found, name, shared[name])
    yield found


@pytest.fixture(scope="session")
def cluster(bare_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """Yield a cluster in which the chart is installed from this tree."""
    if bare_cluster.is_shared:
        yield bare_cluster
        return
    try:
        with _installed(bare_cluster):
            yield bare_cluster
    except NoCluster as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def rights(cluster: KubernetesCluster) -> OperatorRights:
    """Return what all operators asked for so far, in this session and those before it."""
    assert cluster.rights is not None
    return cluster.rights


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    config.stash[_COLLECTED] = {item.nodeid for item in items if item.path.parent == here}
    if hasattr(config, "workerinput"):
        order = {name: number for number, name in enumerate(_LONGEST)}
        items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture
def unseen_tests(rights: OperatorRights, request: pytest.FixtureRequest) -> set[str]:
    """Return e2e tests and files that no session had in it whose operators were looked at."""
    collected = request.config.stash[_COLLECTED]
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    seen = {item.nodeid for item in request.session.items} | rights.tests
    return (files - {Path(each.partition("::")[0]).name for each in collected}) | (collected - seen)


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
