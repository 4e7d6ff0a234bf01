"""What must be alone in the cluster is, whether it is marked or not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster
from vespiary_testkit.local_operator import installed_operator_stopped

pytestmark = pytest.mark.verify

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "disturb",
    [
        KubernetesCluster.install,
        KubernetesCluster.uninstall,
        KubernetesCluster.restart_operator,
        lambda cluster: cluster.helm("rollback", "vespiary", "1"),
        lambda cluster: cluster.signal_component("kubelet", "STOP"),
        lambda cluster: installed_operator_stopped(cluster).__enter__(),
    ],
)
def test_beside_others_nothing_is_done_that_they_would_notice(
    disturb: Callable[[KubernetesCluster], object],
) -> None:
    cluster = KubernetesCluster(Path("/nowhere"))
    cluster.is_shared = True
    with pytest.raises(AssertionError, match="mark this one `alone`"):
        disturb(cluster)


def _pytest(*arguments: str, cwd: Path = _ROOT, **environment: str) -> str:
    """Run tests in a process of their own; return what pytest prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def _e2e(*arguments: str) -> str:
    """Run e2e tests where there is no cluster."""
    return _pytest(*arguments, KUBECONFIG="/none", PATH="")


def test_what_is_marked_does_not_run_beside_others() -> None:
    marked = (
        "tests/e2e/test_crd_sizes.py::test_a_growth_that_failed_can_be_taken_back_to_what_there_is"
    )
    assert "it has to run alone" in _e2e("-n", "1", marked)
    assert "1 skipped" in _e2e(marked)


def test_processes_that_find_no_cluster_say_so() -> None:
    printed = _e2e("-n", "2", "-m", "e2e and not alone", "tests/e2e/test_crd_sizes.py")
    assert "13 skipped" in printed
    assert "kubectl is not on PATH" in printed


_STAND_IN = """
import contextlib
import vespiary_testkit.kubernetes_cluster as cluster_kit
from vespiary_testkit.operator_rights import Asked, OperatorRights

@contextlib.contextmanager
def collecting(self):
    self.asked.add(Asked("list", "brokers", "", "200", ""))
    yield self

cluster_kit.cluster = lambda: contextlib.nullcontext(cluster_kit.KubernetesCluster(None))
cluster_kit.installed = lambda found: contextlib.nullcontext()
OperatorRights.collecting = collecting
"""
"""A plugin that has the sessions do everything but look for a cluster and install the chart."""

_BESIDE = """
def test_beside(cluster):
    pass
"""
_ALONE = """
import pytest
@pytest.mark.alone
def test_alone(rights):
    print("seen:", sorted(rights.tests))
"""


def test_the_second_session_continues_the_record_of_the_first(tmp_path: Path) -> None:
    shutil.copy(_ROOT / "tests/e2e/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    (tmp_path / "stand_in.py").write_text(_STAND_IN)
    (tmp_path / "test_beside.py").write_text(_BESIDE)
    (tmp_path / "test_alone.py").write_text(_ALONE)
    record = tmp_path / "build" / "record.json"
    environment = {"PYTHONPATH": f"{_ROOT / 'tests'}{os.pathsep}{tmp_path}"}

    def session(*arguments: str) -> str:
        everything = ("-s", "-p", "stand_in", "--rootdir", str(tmp_path), *arguments)
        return _pytest(*everything, VESPIARY_E2E_RECORD=str(record), **environment, cwd=tmp_path)

    printed = session("-m", "alone")
    assert "run the tests that are not `alone` first" in printed
    for is_first in (True, False):
        assert "1 passed" in session("-n", "1", "-m", "not alone")
        kept = json.loads(record.read_text())
        assert kept["tests"] == ["test_beside.py::test_beside"]
        assert kept["asked"] == [["list", "brokers", "", "200", ""]]
        printed = session("-m", "alone")
        assert "1 passed" in printed
        assert "seen: ['test_alone.py::test_alone', 'test_beside.py::test_beside']" in printed
        assert json.loads(record.read_text()) == kept, "it may be repeated"
        if is_first:  # the next first session forgets this
            record.write_text(json.dumps(kept | {"tests": ["test_gone.py::test_gone"]}))
    assert "2 passed" in session()
    assert len(json.loads(record.read_text())["tests"]) == 2, "one session for all is a first one"
