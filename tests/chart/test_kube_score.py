"""kube-score finds nothing against the chart but what is meant to be so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from vespiary_testkit.chart import needs_helm, rendered
from vespiary_testkit.go_tools import NoTool, tool

pytestmark = needs_helm

IGNORED = {
    "deployment-strategy": "Recreate: two operators at a time would be one too many",
    "deployment-replicas": "one that starts in two seconds is enough; brokers run on without it",
}


@pytest.mark.parametrize("replicas", [1, 2])
def test_kube_score_is_content(tmp_path: Path, replicas: int) -> None:
    try:
        program = tool("kube-score")
    except NoTool as reason:
        pytest.skip(str(reason))
    documents = rendered(
        "networkPolicy.enabled=true",
        "image.pullPolicy=Always",  # a tag of a release does not move, so the default is another
        "crds.install=false",
        f"replicas={replicas}",
    )
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    excused = IGNORED if replicas == 1 else {}
    ignored = [part for name in excused for part in ("--ignore-test", name)]
    done = subprocess.run(
        # No CPU limit: a throttled operator is a late one, and the request is its share.
        [
            program,
            "score",
            "--output-format=ci",
            "--ignore-container-cpu-limit",
            *ignored,
            str(path),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    found = [
        line for line in done.stdout.splitlines() if not line.startswith(("[OK]", "[SKIPPED]"))
    ]
    assert done.returncode == 0, done.stdout
    assert not found
    assert done.stdout.count("[OK]") >= 10, done.stdout
