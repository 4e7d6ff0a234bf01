"""Schemas: structural, bounded, without defaults, and of the same opinion as the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from vespiary_spec.chart_values import ChartValues
from vespiary_spec.conversion import convert, to_plain
from vespiary_spec.errors import ConfigError
from vespiary_spec.gen import chart, crds
from vespiary_spec.gen.schema import Target, struct_schema
from vespiary_spec.model import Spelling
from vespiary_spec.resources import BrokerSpec
from vespiary_spec.settings import BrokerSettings

DEFINITIONS = list(crds.definitions().values())


def root(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_the_schema_is_structural_and_bounded(definition: dict[str, Any]) -> None:
    for path, node in nodes(root(definition)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert "$ref" not in node, path
        assert node.get("additionalProperties") is not False, path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("map", "atomic"), path
        if node.get("type") == "string" and "enum" not in node and path.startswith(".spec"):
            assert node["maxLength"] > 0, path


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_the_api_server_fills_in_replicas_alone(definition: dict[str, Any]) -> None:
    filled = [path for path, node in nodes(root(definition)) if "default" in node]
    assert filled in ([], [".spec", ".spec.replicas"])


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_keys_of_lists_are_required(definition: dict[str, Any]) -> None:
    for path, node in nodes(root(definition)):
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], path


def test_what_the_operator_sets_is_not_offered() -> None:
    offered = struct_schema(BrokerSettings, Target.CRD)["properties"]
    assert "journalMaxIo" in offered
    assert not {"journalDirectory", "dataDirectory", "createJournalDir"} & set(offered)


def test_descriptions_say_default_and_unit() -> None:
    offered = struct_schema(BrokerSettings, Target.CRD)["properties"]
    assert offered["journalFileSize"]["description"].endswith("Unit: bytes. Default: 10Mi.")
    assert (
        "Default: 500 with ASYNCIO and IO_URING, 1 with NIO."
        in offered["journalMaxIo"]["description"]
    )


def test_whole_numbers_have_the_models_bounds() -> None:
    offered = struct_schema(BrokerSettings, Target.CRD)["properties"]
    assert (offered["journalMinFiles"]["minimum"], offered["journalMinFiles"]["maximum"]) == (
        2,
        10000,
    )
    assert offered["journalPoolFiles"]["minimum"] == -1


def test_sizes_and_durations_have_rules() -> None:
    offered = struct_schema(BrokerSettings, Target.CRD)["properties"]
    (rule,) = (r["rule"] for r in offered["globalMaxSize"]["x-kubernetes-validations"])
    assert rule.startswith("type(self) == int ? (self == -1 || (self >= 8388608))")
    (rule,) = (r["rule"] for r in offered["diskScanPeriod"]["x-kubernetes-validations"])
    assert "duration(self) >= duration('100ms')" in rule


CASES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"replicas": 3, "config": {"journalMaxIo": 5}}, True),
    ({"replicas": -1}, False),
    ({"config": {"journalMinFiles": 1}}, False),
    ({"config": {"journalType": "X"}}, False),
    ({"config": {"journalFileSize": "10MiB"}}, False),
    ({"config": {"journalFileSize": "10Mi"}}, True),
    ({"config": {"diskScanPeriod": "2 s"}}, False),
    ({"acceptors": []}, False),
    ({"acceptors": [{"name": "A", "port": 1}]}, False),
    ({"acceptors": [{"name": "a", "port": 70000}]}, False),
    ({"acceptors": [{"name": "a"}]}, False),
    ({"version": "latest"}, False),
    ({"version": "0.1.0-rc.1"}, True),
    ({"storage": {"retention": {"whenScaled": "Keep"}}}, False),
]


@pytest.mark.parametrize(("spec", "is_good"), CASES)
def test_schema_and_model_are_of_one_opinion(spec: dict[str, Any], is_good: bool) -> None:
    schema = struct_schema(BrokerSpec, Target.CRD)
    assert jsonschema.Draft7Validator(schema).is_valid(spec) is is_good
    if is_good:
        convert(spec, BrokerSpec, spelling=Spelling.CAMEL)
    else:
        with pytest.raises(ConfigError):
            convert(spec, BrokerSpec, spelling=Spelling.CAMEL)


def test_the_charts_schema_takes_its_own_defaults_and_nothing_unknown() -> None:
    import json

    schema = json.loads(chart.values_schema())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    defaults = to_plain(ChartValues(), spelling=Spelling.CAMEL, with_defaults=True)
    validator.validate(defaults)
    validator.validate(defaults | {"global": {"anything": 1}})
    validator.validate({"resources": {"limits": {"cpu": 1, "memory": "64Mi"}}})
    for wrong in ({"replicas": 6}, {"scope": "all"}, {"unknown": 1}, {"image": {"tags": "x"}}):
        assert not validator.is_valid(wrong), wrong


def test_the_charts_template_is_guarded_and_escaped() -> None:
    text = crds.chart_template()
    assert text.startswith("{{- if .Values.crds.install }}\n---\n")
    assert text.endswith("{{- end }}\n")
    assert text.count("helm.sh/resource-policy: keep") == 3
    directives = [line for line in text.splitlines() if "{{" in line]
    assert set(directives) == {
        "{{- if .Values.crds.install }}",
        "  {{- if .Values.crds.keep }}",
        "  {{- end }}",
        "{{- end }}",
    }


def test_fields_in_lists_of_lists_have_no_rules() -> None:
    """An API server estimates a rule by how often it may be evaluated, and refuses the CRD."""
    brokers = next(d for d in DEFINITIONS if d["spec"]["names"]["kind"] == "Broker")
    spec = root(brokers)["properties"]["spec"]["properties"]
    queue = spec["addresses"]["items"]["properties"]["queues"]["items"]
    assert "delayBeforeDispatch" in queue["properties"]
    for name, field in queue["properties"].items():
        assert "x-kubernetes-validations" not in field, name
