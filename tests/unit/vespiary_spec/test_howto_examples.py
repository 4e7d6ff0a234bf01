"""The resources that the howto pages show are such as an API server takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from vespiary_spec.configuration import from_broker
from vespiary_spec.resources import API_VERSION, Broker, JournalArchive

pytestmark = pytest.mark.verify

ROOT = Path(__file__).resolve().parents[3]
CRD = ROOT / "crds/vespiary.dev_brokers.yaml"


def examples() -> list[Any]:
    """Return the YAML blocks of all howto pages that begin with `spec:`."""
    return [
        pytest.param(yaml.safe_load(block)["spec"], id=page.stem)
        for page in sorted((ROOT / "docs/howto").glob("*.md"))
        for block in re.findall(r"```yaml\n(spec:\n.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize("spec", examples())
def test_what_a_page_shows_is_taken(spec: dict[str, Any]):
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    Draft202012Validator(schema).validate(spec)
    metadata = {"name": "orders", "namespace": "ns", "uid": "u-1"}
    made = Broker.from_dict(
        {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": spec}
    )
    assert from_broker(made).data_directory


def archives() -> list[Any]:
    """Return the JournalArchives that the howto pages show."""
    return [
        pytest.param(document, id=page.stem)
        for page in sorted((ROOT / "docs/howto").glob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        if "kind: JournalArchive" in block
        for document in yaml.safe_load_all(block)
    ]


@pytest.mark.parametrize("document", archives())
def test_an_archive_that_a_page_shows_is_taken(document: dict[str, Any]):
    assert JournalArchive.from_dict(document).spec.broker_ref.name


def test_there_are_such_pages():
    assert "retention" in {example.id for example in examples()}
    assert "archive" in {example.id for example in archives()}
