"""What the model knows about its own fields: one table per Struct, in both spellings.

Owns: `setting()`, by which a field states its unit, bounds and change class, and
`fields_of()`, by which conversion, schema and reference pages read them back.
Never: converts or validates values (that is `conversion`).
Called by: `settings`, `resources`, `conversion`, `gen`.

A name has one source, the attribute in Python, and two spellings made from it:
kebab-case in `broker.yaml` and camelCase in resources.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from vespiary_spec.units import format_quantity


class Change(enum.StrEnum):
    """What has to happen for a changed value to take effect."""

    IMMUTABLE = "immutable"
    RESTART = "restart"
    RELOAD = "reload"


class Spelling(enum.StrEnum):
    """How names are written: kebab-case in `broker.yaml`, camelCase in resources."""

    KEBAB = "kebab"
    CAMEL = "camel"


class Unit(enum.StrEnum):
    """Unit of a number; bytes and durations may also be written with suffixes."""

    NONE = ""
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    NANOSECONDS = "ns"
    MILLISECONDS = "ms"
    SECONDS = "s"
    PERCENT = "%"
    FILES = "files"
    REQUESTS = "requests"
    MESSAGES = "messages"
    HEADERS = "headers"
    CONNECTIONS = "connections"
    QUANTITY = "quantity"

    @property
    def is_size(self) -> bool:
        """Whether `10MiB` is an accepted value."""
        return self in (Unit.BYTES, Unit.BYTES_PER_SECOND)

    @property
    def is_duration(self) -> bool:
        """Whether `500ms` is an accepted value."""
        return self in (Unit.NANOSECONDS, Unit.MILLISECONDS, Unit.SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a field states about itself beyond its type.

    Attributes:
        unit: Unit of the number.
        change: What a change needs to take effect; None outside of settings.
        minimum: Smallest accepted number, in `unit`; `special` is accepted beside it.
        maximum: Largest accepted number, in `unit`.
        special: One number outside the bounds with a meaning of its own, such as -1.
        multiple_of: The number has to be a multiple of this.
        pattern: Regular expression (anchored) of accepted text.
        max_length: Longest accepted text, in characters; or most items of a list or map.
        min_items: Fewest items of a list.
        key: For lists: the field that names an item, as camelCase.
        is_in_resource: False for what only `broker.yaml` has; the operator sets it.
        is_open: For maps of foreign data: any content is accepted.
        default_text: The default in words, where it is computed.
        rules: CEL rules for this field: (rule, message).
        has_no_rule: Leave the bounds to the broker and the operator: in a list of lists a CEL rule
            costs more than an API server allows.
    """

    unit: Unit = Unit.NONE
    change: Change | None = None
    minimum: float | None = None
    maximum: float | None = None
    special: int | None = None
    multiple_of: int | None = None
    pattern: str = ""
    max_length: int | None = None
    min_items: int | None = None
    key: str = ""
    is_in_resource: bool = True
    is_open: bool = False
    default_text: str = ""
    rules: tuple[tuple[str, str], ...] = ()
    has_no_rule: bool = False

    def allowed(self) -> str:
        """Say the bounds in words for an error message; empty if there are none."""
        low, high = self._shown(self.minimum), self._shown(self.maximum)
        parts = []
        if low and high:
            parts.append(f"{low} to {high}")
        elif low or high:
            parts.append(f"{low} or more" if low else f"{high} or less")
        if self.multiple_of:
            parts.append(f"a multiple of {self._shown(self.multiple_of)}")
        if self.special is not None:
            parts.append(f"or {self.special}")
        text = ", ".join(parts).replace(", or", " or")
        return text if self.unit.is_size else f"{text} {self.unit}".strip() if text else ""

    def _shown(self, bound: float | None) -> str:
        if bound is None:
            return ""
        if self.unit.is_size:
            return format_quantity(int(bound))
        return str(int(bound) if bound == int(bound) else bound)


def setting(description: str, **facts: Any) -> msgspec.Meta:
    """Describe a field, as the second part of its `Annotated` type.

    Args:
        description: One or more sentences, as users read them in schema and reference.
        **facts: Attributes of `Facts`.
    """
    return msgspec.Meta(description=description, extra={"facts": Facts(**facts)})


def kebab(name: str) -> str:
    """Spell a Python attribute as in `broker.yaml`."""
    return name.replace("_", "-")


def camel(name: str) -> str:
    """Spell a Python attribute as in a resource."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def spell(name: str, spelling: Spelling) -> str:
    """Spell a Python attribute in either way."""
    return kebab(name) if spelling is Spelling.KEBAB else camel(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldModel:
    """One field of a Struct.

    Attributes:
        name: Attribute in Python.
        type: Type without its annotations and without None.
        is_nullable: Whether None stands for "not set".
        is_required: Whether the field has no default.
        default: Default value; None if required.
        description: Text for users.
        facts: Unit, bounds and so on.
    """

    name: str
    type: inspect.Type
    is_nullable: bool
    is_required: bool
    default: Any
    description: str
    facts: Facts

    def spelled(self, spelling: Spelling) -> str:
        """Return the name as users write it."""
        return spell(self.name, spelling)


def unwrap(kind: inspect.Type) -> tuple[inspect.Type, bool, str, Facts]:
    """Take annotations and None off a type.

    Returns:
        Type, whether None was accepted, description, facts.
    """
    description, facts, is_nullable = "", Facts(), False
    while True:
        if isinstance(kind, inspect.Metadata):
            description = description or (kind.extra_json_schema or {}).get("description", "")
            facts = (kind.extra or {}).get("facts", facts)
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            others = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
            assert len(others) == 1, f"a union of {len(others)} types has no schema here"
            is_nullable = len(others) < len(kind.types)
            kind = others[0]
        else:
            return kind, is_nullable, description, facts


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[FieldModel, ...]:
    """Return the fields of a Struct in the order in which they are written down."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    found = []
    for field in info.fields:
        kind, is_nullable, description, facts = unwrap(field.type)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(
            FieldModel(
                name=field.name,
                type=kind,
                is_nullable=is_nullable,
                is_required=field.required,
                default=None if field.required else default,
                description=description,
                facts=facts,
            )
        )
    return tuple(found)


@functools.cache
def field_named(struct: type[msgspec.Struct], name: str, spelling: Spelling) -> FieldModel | None:
    """Return the field that users call `name`, or None."""
    for field in fields_of(struct):
        if field.spelled(spelling) == name:
            return field
    return None
