"""Every example is understood by the model, and a Broker's settings fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vespiary_spec.configuration import from_broker
from vespiary_spec.resources import Broker, BrokerNodeTuning, JournalArchive

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_is_understood(path: Path) -> None:
    document = yaml.safe_load(path.read_text("utf-8"))
    if document["kind"] == "Broker":
        from_broker(Broker.from_dict(document))
    elif document["kind"] == "JournalArchive":
        assert JournalArchive.from_dict(document).spec.broker_ref.name
    else:
        assert BrokerNodeTuning.from_dict(document).metadata.name


def test_there_are_examples() -> None:
    names = {path.name for path in EXAMPLES}
    assert {"archive.yaml", "archive-verify.yaml", "broker.yaml", "node-tuning.yaml"} <= names
