"""The CEL rules of the generated CRDs, and a document for a value at the place of each.

Owns: which rules there are, read from the definitions themselves; the values just inside and just
outside of every bound of the model; what has to stand around a value so that nothing else is wrong
with a resource.
Never: asks an API server.
Called by: tests/e2e/test_crd_rules.py, tests/unit/vespiary_spec/test_crd_rule_examples.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from vespiary_spec.conversion import usable_fields
from vespiary_spec.limits import API_GROUP, API_VERSION, WHOLE_NUMBER_MAX
from vespiary_spec.model import Facts, Spelling, unwrap
from vespiary_spec.units import format_quantity


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule of a definition.

    Attributes:
        kind: Kind of the resource.
        path: Where it stands, as `.spec.acceptors[].port`; empty for the whole resource.
        message: What people read when it refuses.
        is_of_change: Whether it holds a new value against the old one.
    """

    kind: str
    path: str
    message: str
    is_of_change: bool

    def __str__(self) -> str:
        return f"{self.kind}{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Examples:
    """Values at the place of a rule; for one of the whole resource, the value of `spec`.

    Attributes:
        refused: Values that this rule refuses.
        taken: Values that all rules take.
        before: What stands there before, for a rule of change.
        names: Names of resources that are (refused, taken), for the rule of the name.
        spec: What those have as `spec`.
    """

    refused: tuple[Any, ...] = ()
    taken: tuple[Any, ...] = ()
    before: Any = None
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)


def rules_of(definition: dict[str, Any]) -> list[Rule]:
    """Return every rule of a custom resource definition."""
    kind = definition["spec"]["names"]["kind"]

    def walk(schema: dict[str, Any], path: str) -> Iterator[Rule]:
        for rule in schema.get("x-kubernetes-validations", ()):
            yield Rule(kind, path, rule["message"], "oldSelf" in rule["rule"])
        for name, inner in schema.get("properties", {}).items():
            yield from walk(inner, f"{path}.{name}")
        if "items" in schema:
            yield from walk(schema["items"], f"{path}[]")
        if isinstance(schema.get("additionalProperties"), dict):
            yield from walk(schema["additionalProperties"], f"{path}{{}}")

    (version,) = definition["spec"]["versions"]
    return list(walk(version["schema"]["openAPIV3Schema"], ""))


# --- bounds -------------------------------------------------------------------------------------


def bounded_fields(
    struct: type[msgspec.Struct], path: str = ".spec"
) -> Iterator[tuple[str, Facts]]:
    """Yield place and facts of the sizes and durations of the model that have bounds."""
    for field in usable_fields(struct, Spelling.CAMEL):
        kind, facts = field.type, field.facts
        place = f"{path}.{field.spelled(Spelling.CAMEL)}"
        while isinstance(kind, inspect.VarTupleType):
            kind, _, _, facts = unwrap(kind.item_type)
            place += "[]"
        if isinstance(kind, inspect.StructType):
            yield from bounded_fields(kind.cls, place)
        elif (facts.unit.is_size or facts.unit.is_duration) and facts.allowed():
            yield place, facts


def bounds_examples(facts: Facts) -> Examples:
    """Return the values on both sides of each bound, as numbers and as text with a unit."""

    def text(number: int) -> str:
        return format_quantity(number) if facts.unit.is_size else f"{number}{facts.unit}"

    step = facts.multiple_of or 1
    taken: list[Any] = [] if facts.special is None else [facts.special]
    refused: list[Any] = [] if facts.special is None else [facts.special - 1]
    for bound, outwards in ((facts.minimum, -1), (facts.maximum, 1)):
        if bound is None:
            continue
        edge = int(bound)
        taken += [edge, text(edge)]
        for beyond in {edge + outwards, edge + outwards * step}:
            if beyond != facts.special and abs(beyond) <= WHOLE_NUMBER_MAX:
                refused += [beyond] if beyond < 0 else [beyond, text(beyond)]
    if step > 1:
        inside = int(facts.minimum or 0) + step
        refused += [inside + 1, text(inside + 1)]
        taken += [inside, text(inside)]
    return Examples(refused=tuple(refused), taken=tuple(taken))


# --- documents ----------------------------------------------------------------------------------

WITHIN: dict[str, dict[str, Any]] = {
    ".spec.acceptors[]": {"name": "a", "port": 7000},
    ".spec.addressSettings[]": {"match": "#"},
    ".spec.env[]": {"name": "A"},
    ".spec.envFrom[]": {"prefix": "A_", "secretRef": {"name": "a"}},
    ".spec.extraVolumeMounts[]": {"name": "a", "mountPath": "/mnt/a"},
    ".spec.extraVolumes[]": {"name": "a"},
    ".spec.maintenanceWindows[]": {"start": "02:00", "duration": 600},
    ".spec.metrics.podMonitor": {"credentialsSecretName": "a"},
    ".spec.perBroker[]": {"ordinal": 0, "config": {}},
    ".spec.tlsRoute": {"parentRefs": [{"name": "a"}], "hostnames": ["a.b"], "acceptor": "all"},
    **{
        f".spec.storage.volumes.{name}.autoGrow": {"maxSize": "10Gi"}
        for name in ("bindings", "journal", "paging", "largeMessages", "jms", "retention")
    },
}
"""What else an object has to hold, when an example is a part of it."""

BESIDE: dict[str, dict[str, Any]] = {
    ".spec.sparkConf": {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}},
    ".spec.extraVolumes": {"extraVolumeMounts": [{"name": "a", "mountPath": "/mnt/a"}]},
    ".spec.extraVolumeMounts": {"extraVolumes": [{"name": "a", "emptyDir": {}}]},
    **{
        f".spec.storage.volumes.{name}.autoGrow": {"size": "64Mi"}
        for name in ("bindings", "journal", "paging", "largeMessages", "jms", "retention")
    },
}
"""What has to stand beside a field, when an example is in it."""


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """Return the `spec` that has a value at a place, and around it only what has to be there."""
    if not path:
        return dict(value)
    parts = re.findall(r"\.\w+|\[\]", path)
    for end in range(len(parts), 1, -1):
        here, around = "".join(parts[:end]), "".join(parts[: end - 1])
        if parts[end - 1] == "[]":
            value = [value]
        else:
            value = WITHIN.get(around, {}) | BESIDE.get(here, {}) | {parts[end - 1][1:]: value}
    found: dict[str, Any] = value
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """One request that an API server answers.

    Attributes:
        rule: The rule that it is an example of.
        document: The resource as it is asked for.
        before: `spec` of the resource that it is a change of; None where it is made.
        is_refused: Whether the rule refuses it; otherwise the API server takes it.
    """

    rule: Rule
    document: dict[str, Any]
    before: dict[str, Any] | None
    is_refused: bool


def cases_of(rule: Rule, examples: Examples) -> Iterator[Case]:
    """Yield the requests that show a rule."""

    def document(spec: dict[str, Any], name: str = "tried") -> dict[str, Any]:
        return {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": rule.kind,
            "metadata": {"name": name},
            "spec": spec,
        }

    assert rule.is_of_change is (examples.before is not None), f"{rule}: is there one before?"
    before = None if examples.before is None else spec_with(rule.path, examples.before)
    for is_refused in (True, False):
        for value in examples.refused if is_refused else examples.taken:
            made = document(spec_with(rule.path, value))
            yield Case(rule=rule, document=made, before=before, is_refused=is_refused)
        for name in examples.names[0 if is_refused else 1]:
            made = document(examples.spec, name)
            yield Case(rule=rule, document=made, before=before, is_refused=is_refused)


def field_of(cause: dict[str, Any]) -> str:
    """Return the place that an API server names in one cause of a refusal, as rules have it."""
    field = cause.get("field") or ""
    return "" if field == "<nil>" else "." + re.sub(r"\[\d+\]", "[]", field)


def is_by(rule: Rule, causes: list[dict[str, Any]]) -> bool:
    """Whether a rule is among the causes for which an API server refused something."""
    return any(
        field_of(cause) == rule.path and cause["message"].endswith(rule.message) for cause in causes
    )


def paused(case: Case) -> Case:
    """Return a change as one of a Broker of which nothing is made."""
    assert case.before is not None
    still = {"paused": True, "replicas": 0}
    document = case.document | {"spec": case.document["spec"] | still}
    return dataclasses.replace(case, document=document, before=case.before | still)
