"""The custom resource definitions as YAML, and as the chart's template of them.

Owns: names, columns, subresources and where the rules stand.
Called by: `gen.__main__`, `vespiary crd`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from vespiary_spec import limits
from vespiary_spec.archive_status import JournalArchiveStatus
from vespiary_spec.archives import ARCHIVE_RULES, JournalArchiveSpec
from vespiary_spec.gen.schema import Target, struct_schema, validations
from vespiary_spec.per_broker import BrokerOverrides
from vespiary_spec.pod_extras import STRUCT_RULES
from vespiary_spec.pod_template import TEMPLATE_STRUCT_RULES
from vespiary_spec.resources import (
    BrokerNodeTuningSpec,
    BrokerSpec,
)
from vespiary_spec.rules import CONFIG_RULES, ROOT_RULES, SPEC_RULES, TUNING_RULES
from vespiary_spec.services import SERVICE_STRUCT_RULES
from vespiary_spec.settings import BrokerSettings
from vespiary_spec.status import BrokerNodeTuningStatus, BrokerStatus
from vespiary_spec.volumes import VOLUME_STRUCT_RULES


def _column(name: str, path: str, kind: str = "string", *, is_wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": 1} if is_wide else column


_STRUCT_RULES: dict[type, tuple[tuple[str, str], ...]] = {
    BrokerSettings: CONFIG_RULES,
    BrokerOverrides: CONFIG_RULES,
    BrokerSpec: SPEC_RULES,
    **STRUCT_RULES,
    **TEMPLATE_STRUCT_RULES,
    **VOLUME_STRUCT_RULES,
    **SERVICE_STRUCT_RULES,
}

_READY = '.status.conditions[?(@.type=="Ready")]'
_AGE = _column("Age", ".metadata.creationTimestamp", "date")

BROKER_COLUMNS = [
    _column("Ready", f"{_READY}.status"),
    _column("Brokers", ".status.summary"),
    _column("Engine", ".status.engine"),
    _column("Version", ".status.version"),
    _column("Storage", ".status.storage"),
    _AGE,
    _column("NodeTuned", '.status.conditions[?(@.type=="NodeTuned")].status', is_wide=True),
    _column("Reason", f"{_READY}.message", is_wide=True),
]

TUNING_COLUMNS = [
    _column("Ready", f"{_READY}.status"),
    _column("Mode", ".spec.mode"),
    _column("Nodes", ".status.summary"),
    _AGE,
    _column("Reason", f"{_READY}.message", is_wide=True),
]

ARCHIVE_COLUMNS = [
    _column("Ready", f"{_READY}.status"),
    _column("Broker", ".spec.brokerRef.name"),
    _column("Schedule", ".spec.schedule"),
    _column("Last", ".status.lastRun.outcome"),
    _column("Rows", ".status.lastRun.rows", "integer"),
    _column("Lag", ".status.lagSeconds", "integer"),
    _AGE,
    _column("Files", ".status.lastRun.files", "integer", is_wide=True),
    _column("Damages", ".status.lastRun.damages", "integer", is_wide=True),
    _column("Reason", f"{_READY}.message", is_wide=True),
]


def _definition(
    kind: str,
    plural: str,
    *,
    scope: str,
    short_names: list[str],
    description: str,
    spec: type[msgspec.Struct],
    status: type[msgspec.Struct],
    root_rules: tuple[tuple[str, str], ...],
    columns: list[dict[str, Any]],
    subresources: dict[str, Any],
) -> dict[str, Any]:
    spec_schema = struct_schema(spec, Target.CRD, _STRUCT_RULES)
    if "scale" in subresources:
        # The scale subresource answers with an error where the number is not written down, so
        # this is the one default that the API server fills in.
        spec_schema["properties"]["replicas"]["default"] = 1
        spec_schema["default"] = {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{limits.API_GROUP}"},
        "spec": {
            "group": limits.API_GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short_names,
                # The API server drops an empty list, and every later apply would find a conflict.
                **({"categories": ["all"]} if scope == "Namespaced" else {}),
            },
            "versions": [
                {
                    "name": limits.API_VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": subresources,
                    "schema": {
                        "openAPIV3Schema": {
                            "description": description,
                            "type": "object",
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": {
                                    "description": "What is wanted.",
                                    **spec_schema,
                                },
                                "status": {
                                    "description": "What the operator found.",
                                    **struct_schema(status, Target.CRD),
                                },
                            },
                            **({"required": ["spec"]} if "required" in spec_schema else {}),
                            "x-kubernetes-validations": validations(root_rules),
                        }
                    },
                }
            ],
        },
    }


def definitions() -> dict[str, dict[str, Any]]:
    """Return the custom resource definitions by file name."""
    broker = _definition(
        "Broker",
        "brokers",
        scope="Namespaced",
        short_names=["br"],
        description="A persistent message broker. Everything but the name may be left out.",
        spec=BrokerSpec,
        status=BrokerStatus,
        root_rules=ROOT_RULES,
        columns=BROKER_COLUMNS,
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )
    tuning = _definition(
        "BrokerNodeTuning",
        "brokernodetunings",
        scope="Cluster",
        short_names=["brnt"],
        description="What is done about fs.aio-max-nr of the nodes that brokers run on.",
        spec=BrokerNodeTuningSpec,
        status=BrokerNodeTuningStatus,
        root_rules=TUNING_RULES,
        columns=TUNING_COLUMNS,
        subresources={"status": {}},
    )
    archive = _definition(
        "JournalArchive",
        "journalarchives",
        scope="Namespaced",
        short_names=["ja"],
        description="Exports of what a Broker's journal held, once or on a schedule.",
        spec=JournalArchiveSpec,
        status=JournalArchiveStatus,
        root_rules=ARCHIVE_RULES,
        columns=ARCHIVE_COLUMNS,
        subresources={"status": {}},
    )
    return {
        f"{limits.API_GROUP}_brokers.yaml": broker,
        f"{limits.API_GROUP}_brokernodetunings.yaml": tuning,
        f"{limits.API_GROUP}_journalarchives.yaml": archive,
    }


def to_yaml(document: dict[str, Any], *, header: str = "") -> str:
    """Write one document after a header; the same text for the same model, always."""
    return header + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=96)


def chart_template() -> str:
    """Return the chart's template: all definitions, kept on uninstall unless told otherwise."""
    parts = ["{{- if .Values.crds.install }}"]
    for definition in definitions().values():
        text = to_yaml(definition).replace("{{", '{{ "{{" }}')
        name_line = f"  name: {definition['metadata']['name']}\n"
        assert text.count(name_line) == 1
        annotated = (
            f"{name_line}"
            "  {{- if .Values.crds.keep }}\n"
            "  annotations:\n"
            "    helm.sh/resource-policy: keep\n"
            "  {{- end }}\n"
        )
        parts.append("---\n" + text.replace(name_line, annotated).rstrip())
    parts.append("{{- end }}")
    return "\n".join(parts) + "\n"
