"""The chart's own tests, with helm, kubectl and an API server at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


def test_the_chart_is_linted_rendered_and_taken_by_the_api_server(
    bare_cluster: KubernetesCluster,
) -> None:
    assert bare_cluster
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/chart", "-q", "-rs", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=dict(os.environ),  # the fixture has put helm, kubectl and KUBECONFIG there
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("make tools" in line for line in skipped), done.stdout
