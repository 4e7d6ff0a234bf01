"""`install.yaml`: the chart for those who have no Helm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vespiary_spec.gen import manifests
from vespiary_testkit.chart import CHART, helm, needs_helm

pytestmark = needs_helm


def documents(*settings: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(manifests.install_text(CHART, settings)) if d]


def key(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_it_has_the_objects_of_the_chart() -> None:
    done = helm("template", "vespiary", str(CHART), "-n", manifests.NAMESPACE, "--no-hooks")
    wanted = {key(d): d for d in yaml.safe_load_all(done.stdout) if d}
    found = {key(d): d for d in documents()}
    assert set(found) - set(wanted) == {("Namespace", manifests.NAMESPACE)}
    assert not set(wanted) - set(found)
    for name, document in wanted.items():
        assert found[name].get("spec") == _without_helm(document).get("spec"), name
        assert found[name].get("rules") == document.get("rules"), name


def _without_helm(value: Any) -> Any:
    """Leave out the labels that only Helm gives."""
    if isinstance(value, dict):
        return {
            name: _without_helm(inner)
            for name, inner in value.items()
            if not name.startswith("helm.sh/") and inner != "Helm"
        }
    return [_without_helm(inner) for inner in value] if isinstance(value, list) else value


def test_nothing_in_it_is_for_helm() -> None:
    text = manifests.install_text(CHART)
    assert "helm.sh" not in text
    assert "Helm" not in text.partition("---")[2]
    assert "# Source" not in text
    for document in documents():
        assert document["metadata"].get("annotations") != {}
        assert "annotations" not in document["metadata"] or document["metadata"]["annotations"]


def test_namespace_and_definitions_come_before_what_needs_them() -> None:
    kinds = [d["kind"] for d in documents()]
    assert kinds[0] == "Namespace"
    assert kinds.index("CustomResourceDefinition") < kinds.index("Deployment")
    assert "BrokerNodeTuning" not in kinds, (
        "kubectl would look it up before its definition is there"
    )
    (own, tuning) = (d for d in documents() if d["kind"] == "Namespace")
    assert own["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert tuning["metadata"]["name"] == "vespiary-node-tuning"


def test_the_command_writes_it_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "dist" / "install.yaml"
    assert manifests.main([str(target), "--chart", str(CHART), "--set", "image.tag=v9"]) == 0
    assert "image: vespiary/operator:v9" in target.read_text("utf-8")
    assert manifests.main([str(target), "--chart", str(CHART), "--set", "unknown=1"]) == 1
    assert "helm failed" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert manifests.main([str(target), "--chart", str(CHART)]) == 1
    assert "helm is not on PATH" in capsys.readouterr().err
