"""The chart as helm renders it.

Owns: how helm is called. Never: talks to a cluster. Called by: tests/chart, tests/e2e.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "vespiary"
HELM = shutil.which("helm") or ""
MONITORING_API = "monitoring.coreos.com/v1"

needs_helm = pytest.mark.skipif(not HELM, reason="helm is not on PATH")


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm; fail with what it said unless `check` is False."""
    done = subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def rendered(*values: str, apis: tuple[str, ...] = (), tests: bool = False) -> list[dict[str, Any]]:
    """Return the chart's objects.

    Args:
        values: Each as `--set` takes it.
        apis: APIs that the cluster serves beside its own.
        tests: Whether the objects of `helm test` are among them.
    """
    chosen = [part for value in values for part in ("--set", value)]
    chosen += [part for api in apis for part in ("--api-versions", api)]
    if not tests:
        chosen.append("--skip-tests")
    done = helm("template", "vespiary", str(CHART), "--namespace", "system", *chosen)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only object of a kind."""
    (found,) = (d for d in documents if d["kind"] == kind)
    return found


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the object of a kind that has a name."""
    (found,) = (d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)
    return found
