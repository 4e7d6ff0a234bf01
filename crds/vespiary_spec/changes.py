"""What differs between two configurations, and what each difference takes to come into effect.

Owns: the change class of every setting, by the top-level name that it stands under; the two parts
of a configuration: what a running broker can take, and what needs a restart.
Never: applies anything.
Called by: the broker's reload, the operator's ConfigMaps and conditions, the generator.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from vespiary_spec.model import Change, FieldModel, Spelling, fields_of, unwrap
from vespiary_spec.settings import Configuration


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that two configurations have different values for.

    Attributes:
        path: Where it stands, dotted.
        change: What its new value takes to come into effect.
    """

    path: str
    change: Change


def classes_within(field: FieldModel) -> set[Change]:
    """Return the change classes of a field and of everything below it."""
    found = {field.facts.change} if field.facts.change is not None else set()
    struct = _struct_of(field)
    if struct is not None:
        for inner in fields_of(struct):
            found |= classes_within(inner)
    return found


def class_of(field: FieldModel) -> Change:
    """Return the change class of a top-level setting, which all that stands below it has too."""
    found = classes_within(field)
    assert len(found) == 1, f"{field.name} has several change classes: {sorted(found)}"
    return next(iter(found))


@functools.cache
def _reloadable() -> frozenset[str]:
    """Return the top-level settings that a running broker can take."""
    return frozenset(
        field.name for field in fields_of(Configuration) if class_of(field) is Change.RELOAD
    )


def _struct_of(field: FieldModel) -> type[msgspec.Struct] | None:
    """Return the Struct that a field is made of, itself or as items; None for plain values."""
    kind = field.type
    if isinstance(kind, inspect.VarTupleType):
        kind = unwrap(kind.item_type)[0]
    elif isinstance(kind, inspect.DictType):
        kind = unwrap(kind.value_type)[0]
    return kind.cls if isinstance(kind, inspect.StructType) else None


def parts(configuration: Configuration) -> tuple[Configuration, Configuration]:
    """Take a configuration apart.

    Returns:
        What needs a restart (or never changes), and what a running broker can take; each with the
        defaults in place of what is in the other one.
    """
    fixed: dict[str, Any] = {}
    reloadable: dict[str, Any] = {}
    for field in fields_of(Configuration):
        own = reloadable if field.name in _reloadable() else fixed
        own[field.name] = getattr(configuration, field.name)
    return Configuration(**fixed), Configuration(**reloadable)


def merged(running: Configuration, wanted: Configuration) -> Configuration:
    """Return what a running broker can be made to be: `wanted`, but for what needs a restart."""
    values = {name: getattr(wanted, name) for name in _reloadable()}
    return msgspec.structs.replace(running, **values)


def differences(
    old: Configuration, new: Configuration, spelling: Spelling = Spelling.KEBAB
) -> tuple[Difference, ...]:
    """Return the settings that differ, in the order of the model.

    Args:
        old: One configuration.
        new: The other one.
        spelling: How names are written.
    """
    return tuple(
        Difference(path, class_of(field))
        for field in fields_of(Configuration)
        for path in _paths(field, getattr(old, field.name), getattr(new, field.name), "", spelling)
    )


def _paths(field: FieldModel, old: Any, new: Any, prefix: str, spelling: Spelling) -> Iterator[str]:
    """Yield where two values of a field differ; named items are told apart by their names."""
    if old == new:
        return
    path = f"{prefix}{field.spelled(spelling)}"
    struct, key = _struct_of(field), field.facts.key
    if isinstance(field.type, inspect.StructType) and None not in (old, new):
        for inner in fields_of(field.type.cls):
            yield from _paths(
                inner, getattr(old, inner.name), getattr(new, inner.name), f"{path}.", spelling
            )
        return
    if struct is None or not (key or isinstance(field.type, inspect.DictType)):
        yield path
        return
    before, after = _by_name(old, key), _by_name(new, key)
    names = [*before, *(name for name in after if name not in before)]
    found = [name for name in names if before.get(name) != after.get(name)]
    for name in found:
        if name not in before or name not in after:
            yield f"{path}.{name}"
            continue
        for inner in fields_of(struct):
            values = getattr(before[name], inner.name), getattr(after[name], inner.name)
            yield from _paths(inner, *values, f"{path}.{name}.", spelling)
    if not found:
        yield path  # the order alone


def _by_name(value: Any, key: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {getattr(item, key): item for item in value or ()}
