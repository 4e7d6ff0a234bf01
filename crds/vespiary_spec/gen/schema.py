"""From the model to schemas: structural ones for CRDs, JSON Schema for the chart.

Owns: how types, bounds, units and CEL rules look in a schema.
Never: knows about files.
Called by: `gen.crds`, `gen.chart`.

A structural schema has every type inlined and keeps no unknown field, so the API
server drops or (with strict validation) refuses what the model does not have.
Defaults stay in the descriptions: a default in the schema would be written into
people's resources, and so outlive the version that it came from.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec import inspect

from vespiary_spec import units
from vespiary_spec.conversion import to_plain, usable_fields
from vespiary_spec.model import Change, Facts, FieldModel, Spelling, Unit, unwrap
from vespiary_spec.units import format_duration, format_quantity, format_size

QUANTITY_CHARACTERS_MAX = 32
TEXT_CHARACTERS_MAX = 4096
"""Bound of text that has none of its own, so that the cost of CEL rules stays bounded."""

ANY_QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?"
    r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_DURATION_PATTERN = units.DURATION_PATTERN.replace("|d)", ")")
_NS = {Unit.NANOSECONDS: 1, Unit.MILLISECONDS: 10**6, Unit.SECONDS: 10**9}


class Target(enum.StrEnum):
    """Who reads the schema."""

    CRD = "crd"
    HELM = "helm"


def shown_default(field: FieldModel, spelling: Spelling) -> str:
    """Say a field's default as users would write it; empty if there is nothing to say."""
    if field.facts.default_text:
        return field.facts.default_text
    value = field.default
    if field.is_required or value is None or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if field.facts.unit.is_size and value > 0:
        return format_size(value) if spelling is Spelling.KEBAB else format_quantity(value)
    if field.facts.unit.is_duration and value > 0:
        return format_duration(int(value) * _NS[field.facts.unit])
    plain = to_plain(value, spelling=spelling)
    if isinstance(plain, list):
        return ", ".join(map(str, plain)) if plain and not isinstance(plain[0], dict) else ""
    return "" if plain in ("", {}) else str(plain)


def described(field: FieldModel, spelling: Spelling = Spelling.CAMEL) -> str:
    """Return a field's description with its default and unit, as schemas show it."""
    text = field.description
    unit = field.facts.unit
    if unit not in (Unit.NONE, Unit.QUANTITY):
        text += f" Unit: {unit}."
    default = shown_default(field, spelling)
    if default:
        text += f" Default: {default}."
    if field.facts.change is Change.IMMUTABLE and "cannot change" not in text:
        text += " Cannot change later."
    return text


def struct_schema(
    struct: type[msgspec.Struct],
    target: Target,
    rules: dict[type, tuple[tuple[str, str], ...]] | None = None,
) -> dict[str, Any]:
    """Return the schema of a Struct.

    Args:
        struct: Struct of the model.
        target: Who reads it.
        rules: CEL rules by Struct, put where the Struct stands.
    """
    rules = rules or {}
    fields = usable_fields(struct, Spelling.CAMEL)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            field.spelled(Spelling.CAMEL): {
                "description": described(field),
                **_type_schema(field.type, field.facts, target, rules),
            }
            for field in fields
        },
    }
    required = [field.spelled(Spelling.CAMEL) for field in fields if field.is_required]
    if required:
        schema["required"] = required
    if target is Target.HELM:
        schema["additionalProperties"] = False
    elif struct in rules:
        schema["x-kubernetes-validations"] = validations(rules[struct])
    return schema


def validations(rules: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """Return CEL rules as a CRD has them."""
    return [{"rule": rule, "message": message} for rule, message in rules]


def _type_schema(
    kind: inspect.Type, facts: Facts, target: Target, rules: dict[type, Any]
) -> dict[str, Any]:
    schema: dict[str, Any]
    if isinstance(kind, inspect.StructType):
        schema = struct_schema(kind.cls, target, rules)
        if facts.rules and target is Target.CRD:
            schema["x-kubernetes-validations"] = validations(facts.rules)
        return schema
    if isinstance(kind, inspect.VarTupleType):
        schema = _list_schema(kind, facts, target, rules)
    elif isinstance(kind, inspect.DictType):
        item, _, _, item_facts = unwrap(kind.value_type)
        schema = {
            "type": "object",
            "additionalProperties": _type_schema(item, item_facts, target, rules),
        }
        if facts.max_length is not None:
            schema["maxProperties"] = facts.max_length
    elif isinstance(kind, inspect.EnumType):
        schema = {"type": "string", "enum": [member.value for member in kind.cls]}
    elif isinstance(kind, inspect.BoolType):
        schema = {"type": "boolean"}
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        schema = _number_schema(kind, facts, target)
    else:
        assert isinstance(kind, inspect.StrType), f"no schema for {kind}"
        schema = _text_schema(facts, target)
    if facts.rules and target is Target.CRD:
        schema["x-kubernetes-validations"] = validations(facts.rules)
    return schema


def _list_schema(
    kind: inspect.VarTupleType, facts: Facts, target: Target, rules: dict[type, Any]
) -> dict[str, Any]:
    item, _, _, item_facts = unwrap(kind.item_type)
    schema: dict[str, Any] = {
        "type": "array",
        "items": _type_schema(item, item_facts, target, rules),
    }
    if facts.min_items is not None:
        schema["minItems"] = facts.min_items
    if facts.max_length is not None:
        schema["maxItems"] = facts.max_length
    if target is Target.CRD:
        if facts.key:
            schema["x-kubernetes-list-type"] = "map"
            schema["x-kubernetes-list-map-keys"] = [facts.key]
        else:
            schema["x-kubernetes-list-type"] = "atomic"
    return schema


def _text_schema(facts: Facts, target: Target) -> dict[str, Any]:
    if facts.unit is Unit.QUANTITY:
        return _int_or_string(ANY_QUANTITY_PATTERN, target)
    schema: dict[str, Any] = {"type": "string"}
    if facts.pattern:
        schema["pattern"] = facts.pattern
    if target is Target.CRD:
        schema["maxLength"] = facts.max_length or TEXT_CHARACTERS_MAX
    elif facts.max_length is not None:
        schema["maxLength"] = facts.max_length
    return schema


def _int_or_string(pattern: str, target: Target) -> dict[str, Any]:
    schema: dict[str, Any] = {"pattern": pattern}
    if target is Target.CRD:
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        schema["maxLength"] = QUANTITY_CHARACTERS_MAX
        schema["x-kubernetes-int-or-string"] = True
    else:
        schema["type"] = ["number", "string"]
    return schema


def _number_schema(
    kind: inspect.IntType | inspect.FloatType, facts: Facts, target: Target
) -> dict[str, Any]:
    if facts.unit.is_size or facts.unit.is_duration:
        pattern = units.QUANTITY_PATTERN if facts.unit.is_size else _DURATION_PATTERN
        schema = _int_or_string(pattern, target)
        is_bounded = facts.allowed() and not facts.has_no_rule
        found = (*((_bounds_rule(facts),) if is_bounded else ()), *_kept_rule(facts))
        if found and target is Target.CRD:
            schema["x-kubernetes-validations"] = validations(found)
        return schema
    if isinstance(kind, inspect.FloatType):
        schema = {"type": "number"}
    else:
        schema = {"type": "integer"}
        if target is Target.CRD:
            schema["format"] = "int64"
    if facts.special is not None and facts.minimum is not None:
        assert facts.special == facts.minimum - 1, "a gap needs a rule of its own"
        schema["minimum"] = facts.special
    elif facts.minimum is not None:
        schema["minimum"] = facts.minimum
    if facts.maximum is not None:
        schema["maximum"] = facts.maximum
    if facts.multiple_of is not None:
        schema["multipleOf"] = facts.multiple_of
    return schema


def _kept_rule(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the rule for a size that cannot change; `4096` and `4Ki` count as the same."""
    if facts.change is not Change.IMMUTABLE:
        return ()
    assert facts.unit.is_size, "durations need a rule of their own"
    return (
        (
            "quantity(string(self)).compareTo(quantity(string(oldSelf))) == 0",
            "cannot change once the Broker exists",
        ),
    )


def _bounds_rule(facts: Facts) -> tuple[str, str]:
    """Return the CEL rule for a number that may be text with a suffix."""
    size = facts.unit.is_size
    exact = []
    text = []
    for bound, sign in ((facts.minimum, ">="), (facts.maximum, "<=")):
        if bound is None:
            continue
        whole = int(bound)
        exact.append(f"self {sign} {whole}")
        if size:
            text.append(f"quantity(self).compareTo(quantity('{whole}')) {sign} 0")
        elif whole or sign == "<=":  # the pattern knows no sign: text is never below zero
            shown = format_duration(whole * _NS[facts.unit]).replace("0ns", "0s")
            shown = f"{int(shown[:-1]) * 24}h" if shown.endswith("d") else shown
            text.append(f"duration(self) {sign} duration('{shown}')")
    if facts.multiple_of:
        exact.append(f"self % {facts.multiple_of} == 0")
        text.append(
            f"quantity(self).isInteger() && quantity(self).asInteger() % {facts.multiple_of} == 0"
        )
    assert exact, "no bounds"
    numbers = " && ".join(exact)
    if facts.special is not None:
        numbers = f"self == {facts.special} || ({numbers})"
    return (
        f"type(self) == int ? ({numbers}) : ({' && '.join(text) or 'true'})",
        f"allowed: {facts.allowed()}",
    )
