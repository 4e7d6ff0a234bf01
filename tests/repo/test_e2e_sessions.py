"""What must be alone in the cluster is, whether it is marked or not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster
from vespiary_testkit.local_operator import installed_operator_stopped

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


def _e2e(*arguments: str) -> str:
    """Run e2e tests where there is no cluster; return what pytest prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=_ROOT,
        env={**kept, "KUBECONFIG": "/none", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_what_is_marked_does_not_run_beside_others() -> None:
    marked = (
        "tests/e2e/test_crd_sizes.py::test_a_growth_that_failed_can_be_taken_back_to_what_there_is"
    )
    assert "it has to run alone" in _e2e("-n", "1", marked)
    assert "1 skipped" in _e2e(marked)


@pytest.mark.slow
def test_processes_that_find_no_cluster_say_so() -> None:
    printed = _e2e("-n", "2", "-m", "e2e and not alone", "tests/e2e/test_crd_sizes.py")
    assert "13 skipped" in printed
    assert "kubectl is not on PATH" in printed
