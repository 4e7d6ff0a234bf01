"""The cluster of the e2e tests, a namespace for each, and what is shown when one fails.

`VESPIARY_E2E_RECORD` may name a file that holds what the operators asked of the API server. A
session that is not limited to tests marked `alone` starts the record afresh, and writes it when it
ends. One in a single process whose tests are all marked `alone` reads it and leaves it as it is, so
it may run days later, or twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_spec.version import VERSION
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, NoCluster, installed
from vespiary_testkit.kubernetes_cluster import cluster as found_cluster
from vespiary_testkit.operator_rights import OperatorRights

_PHASE = pytest.StashKey[dict[str, bool]]()
_SHARED = pytest.StashKey[dict[str, str]]()
_RIGHTS = pytest.StashKey[OperatorRights]()
_COLLECTED = pytest.StashKey[set[str]]()
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


def _record() -> Path | None:
    """Return the file in which one session leaves the requests of its operators to the next."""
    name = os.environ.get("VESPIARY_E2E_RECORD")
    return Path(name) if name else None


@contextlib.contextmanager
def _installed(found: KubernetesCluster, *, continues: bool = False) -> Iterator[OperatorRights]:
    """Install the chart, and collect what its operators ask for.

    Args:
        found: The cluster.
        continues: Whether to add to what the record says, instead of starting a new record.
    """
    rights = OperatorRights(VERSION)
    # The record is written after the chart is uninstalled, which reads the operators' last pages.
    with rights.recorded(_record(), continues=continues), installed(found), rights.collecting():
        found.rights = rights
        yield rights


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
def cluster(
    bare_cluster: KubernetesCluster, request: pytest.FixtureRequest
) -> Iterator[KubernetesCluster]:
    """Yield a cluster in which the chart is installed from this tree."""
    if bare_cluster.is_shared:
        yield bare_cluster
        return
    try:
        with _installed(bare_cluster, continues=_is_alone(request.session)) as rights:
            rights.tests |= {item.nodeid for item in request.session.items}
            yield bare_cluster
    except NoCluster as reason:
        pytest.skip(str(reason))


def _is_alone(session: pytest.Session) -> bool:
    """Whether this is the second of two sessions: all its tests are marked `alone`."""
    return all(item.get_closest_marker("alone") for item in session.items)


@pytest.fixture(scope="session")
def rights(cluster: KubernetesCluster, request: pytest.FixtureRequest) -> OperatorRights:
    """Return what all operators asked for so far, in this session and in the one before it."""
    assert cluster.rights is not None
    record = _record()
    assert record is None or not _is_alone(request.session) or record.is_file(), (
        f"{record} is not there: run the tests that are not `alone` first, to their end"
    )
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
    """Return the e2e tests and files that were in no session whose operators were watched."""
    collected = request.config.stash[_COLLECTED]
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    missing = files - {Path(each.partition("::")[0]).name for each in collected}
    return missing | (collected - rights.tests)


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
