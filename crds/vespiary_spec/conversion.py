"""Plain data, as YAML and JSON give them, to the model and back.

Owns: the checks of names, types and bounds, and their error messages, which lead
with the path to the field in the spelling of the file.
Never: reads files; ignores a name.
Called by: `configuration`, `resources`, the generator (for defaults).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from vespiary_spec import limits, units
from vespiary_spec.errors import ConfigError, QuantityError, UnknownSetting, UnsupportedSetting
from vespiary_spec.model import (
    Facts,
    FieldModel,
    Spelling,
    Unit,
    field_named,
    fields_of,
    kebab,
    spell,
    unwrap,
)
from vespiary_spec.refusals import pointless_names, refused_names, refused_values, renamed_names

S = TypeVar("S", bound=msgspec.Struct)


def convert(data: Any, struct: type[S], *, spelling: Spelling, path: str = "") -> S:
    """Make a Struct of the model from plain data.

    Args:
        data: A mapping as YAML or JSON gives it; None counts as empty.
        struct: Struct of the model.
        spelling: How names are written in `data`.
        path: Where `data` stands, for error messages.

    Raises:
        UnknownSetting: A name that nobody knows; the message suggests the nearest one.
        UnsupportedSetting: A name or value that does not work in this version.
        ConfigError: A value of the wrong type or out of bounds, or a required one is missing.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigError("names with values are expected here", path=path or ".", value=data)
    usable = usable_fields(struct, spelling)
    by_name = {field.spelled(spelling): field for field in usable}
    values: dict[str, Any] = {}
    for name, value in data.items():
        here = f"{path}.{name}" if path else str(name)
        field = by_name.get(str(name))
        if field is None:
            raise refusal(struct, str(name), spelling, here)
        if value is None:
            continue
        values[field.name] = _value(
            value, field.type, field.facts, spelling, here, struct, field.name
        )
    for field in usable:
        if field.is_required and field.name not in values:
            name = field.spelled(spelling)
            raise ConfigError(f"`{name}` is missing here", path=path or ".", cure=field.description)
    return struct(**values)


def usable_fields(struct: type[msgspec.Struct], spelling: Spelling) -> list[FieldModel]:
    """Return the fields that users may write: those that work, in this spelling's files."""
    refused = refused_names(struct)
    return [
        field
        for field in fields_of(struct)
        if kebab(field.name) not in refused
        and (spelling is Spelling.KEBAB or field.facts.is_in_resource)
    ]


def refusal(struct: type[msgspec.Struct], name: str, spelling: Spelling, path: str) -> ConfigError:
    """Return the error that refuses a name: unsupported, in the wrong spelling, or unknown."""
    attribute = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", name).lower().replace("-", "_")
    known = {field.name: field for field in fields_of(struct)}
    refused = {name.replace("-", "_"): why for name, why in refused_names(struct).items()}
    if attribute in refused:
        return UnsupportedSetting(
            f"known, but not supported yet: this version does not do {refused[attribute]}",
            path=path,
            cure="take it out",
        )
    pointless = pointless_names(struct).get(kebab(attribute))
    if pointless is not None:
        return UnsupportedSetting(
            f"known, and has no meaning here: {pointless}", path=path, cure="take it out"
        )
    renamed = renamed_names(struct).get(kebab(attribute))
    if renamed is not None:
        now = spell(renamed.replace("-", "_"), spelling)
        return UnsupportedSetting("a deprecated name", path=path, cure=f"say `{now}` instead")
    if attribute in known and not known[attribute].facts.is_in_resource:
        return UnsupportedSetting(
            "set by the operator, so it has no place in a resource", path=path, cure="take it out"
        )
    usable = [field.spelled(spelling) for field in usable_fields(struct, spelling)]
    candidates = usable + [spell(name, spelling) for name in refused]
    if attribute in known:
        nearest = [known[attribute].spelled(spelling)]
    else:
        guess = spell(attribute, spelling)
        nearest = difflib.get_close_matches(guess, candidates, n=1, cutoff=0.6)
    cure = f"did you mean `{nearest[0]}`?" if nearest else "the configuration reference lists all"
    return UnknownSetting("no setting has this name", path=path, cure=cure)


def _value(
    value: Any,
    kind: inspect.Type,
    facts: Facts,
    spelling: Spelling,
    path: str,
    owner: type[msgspec.Struct],
    name: str,
) -> Any:
    """Convert one value; `owner` and `name` say whose refused values apply."""
    if isinstance(kind, inspect.StructType):
        return convert(value, kind.cls, spelling=spelling, path=path)
    if isinstance(kind, inspect.VarTupleType):
        return _items(value, kind, facts, spelling, path, owner, name)
    if isinstance(kind, inspect.DictType):
        return _mapping(value, kind, facts, spelling, path, owner, name)
    if isinstance(kind, inspect.EnumType):
        return _choice(value, kind, path, refused_values(owner, kebab(name)))
    if isinstance(kind, inspect.BoolType):
        if not isinstance(value, bool):
            raise ConfigError("this is no boolean", path=path, value=value, allowed="true, false")
        return value
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _number(value, kind, facts, spelling, path)
    assert isinstance(kind, inspect.StrType), f"{path}: no conversion to {kind}"
    return _text(value, facts, path)


def _items(
    value: Any,
    kind: inspect.VarTupleType,
    facts: Facts,
    spelling: Spelling,
    path: str,
    owner: type[msgspec.Struct],
    name: str,
) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("a list is expected here", path=path, value=value)
    if facts.min_items is not None and len(value) < facts.min_items:
        raise ConfigError(
            "the list is too short", path=path, value=len(value), allowed=f"{facts.min_items} up"
        )
    if facts.max_length is not None and len(value) > facts.max_length:
        raise ConfigError(
            "the list is too long",
            path=path,
            value=len(value),
            allowed=f"at most {facts.max_length}",
        )
    item, _, _, item_facts = unwrap(kind.item_type)
    found = tuple(
        _value(entry, item, item_facts, spelling, f"{path}[{index}]", owner, name)
        for index, entry in enumerate(value)
    )
    if facts.key:
        assert isinstance(item, inspect.StructType), f"{path}: a key needs entries with names"
        keyed = field_named(item.cls, facts.key, Spelling.CAMEL)
        assert keyed is not None, f"{path}: no field is called {facts.key}"
        attribute = keyed.name
        seen: set[Any] = set()
        for index, entry in enumerate(found):
            key = getattr(entry, attribute)
            if key in seen:
                raise ConfigError(
                    "two entries have the same name",
                    path=f"{path}[{index}].{spell(attribute, spelling)}",
                    value=key,
                )
            seen.add(key)
    return found


def _mapping(
    value: Any,
    kind: inspect.DictType,
    facts: Facts,
    spelling: Spelling,
    path: str,
    owner: type[msgspec.Struct],
    name: str,
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("names with values are expected here", path=path, value=value)
    if facts.max_length is not None and len(value) > facts.max_length:
        raise ConfigError(
            "too many entries", path=path, value=len(value), allowed=f"at most {facts.max_length}"
        )
    item, _, _, item_facts = unwrap(kind.value_type)
    found = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigError("the name of an entry has to be text", path=path, value=key)
        here = f"{path}.{key}"
        found[key] = _value(entry, item, item_facts, spelling, here, owner, name)
    return found


def _choice(value: Any, kind: inspect.EnumType, path: str, refused: dict[str, str]) -> Any:
    for member in kind.cls:
        if value == member.value:
            return member
    if isinstance(value, str) and value in refused:
        raise UnsupportedSetting(
            f"known, but not supported yet: this version does not do {refused[value]}",
            path=path,
            value=value,
            allowed=", ".join(m.value for m in kind.cls),
        )
    raise ConfigError(
        "no such choice", path=path, value=value, allowed=", ".join(m.value for m in kind.cls)
    )


def _number(
    value: Any,
    kind: inspect.IntType | inspect.FloatType,
    facts: Facts,
    spelling: Spelling,
    path: str,
) -> float:
    number = value
    if isinstance(value, str) and facts.unit.is_size | facts.unit.is_duration:
        number = _with_suffix(value, facts, spelling, path)
    whole = isinstance(kind, inspect.IntType)
    if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
        kinds = f"a whole number of {facts.unit}" if facts.unit and whole else "a number"
        raise ConfigError(f"this is not {kinds}", path=path, value=value, allowed=facts.allowed())
    if number == facts.special and facts.special is not None:
        return number
    if whole and abs(number) > limits.WHOLE_NUMBER_MAX:
        most = f"at most {limits.WHOLE_NUMBER_MAX}"
        raise ConfigError("the number is too large", path=path, value=value, allowed=most)
    low, high = facts.minimum, facts.maximum
    too_low = low is not None and not number >= low
    too_high = high is not None and not number <= high
    if too_low or too_high or (facts.multiple_of and number % facts.multiple_of):
        raise ConfigError("out of bounds", path=path, value=value, allowed=facts.allowed())
    return number if whole else float(number)


def _with_suffix(value: str, facts: Facts, spelling: Spelling, path: str) -> int:
    """Read `10MiB` or `500ms`; `--set` gives plain numbers as text, so those pass too."""
    if facts.special is not None and value.strip() == str(facts.special):
        return facts.special
    try:
        if facts.unit.is_duration:
            return units.parse_duration(value, unit=facts.unit.value)
        if spelling is Spelling.CAMEL:
            return units.parse_quantity(value)
        return units.parse_size(value)
    except QuantityError as error:
        raise ConfigError(error.what, path=path, value=value, allowed=error.allowed) from error


def _text(value: Any, facts: Facts, path: str) -> str:
    if facts.unit is Unit.QUANTITY and isinstance(value, int | float):
        value = str(value)
    if not isinstance(value, str):
        raise ConfigError("this is no text", path=path, value=value, cure="put it into quotes")
    if facts.max_length is not None and len(value) > facts.max_length:
        raise ConfigError(
            "the text is too long",
            path=path,
            value=len(value),
            allowed=f"{facts.max_length} characters",
        )
    if facts.pattern and not re.fullmatch(facts.pattern, value):
        raise ConfigError("not of the right form", path=path, value=value, allowed=facts.pattern)
    return value


# --- back to plain data -------------------------------------------------------------------------


def to_plain(value: Any, *, spelling: Spelling, with_defaults: bool = False) -> Any:
    """Make plain data from a Struct of the model, names spelled as asked.

    Args:
        value: A Struct, or what its fields hold.
        spelling: How names are written.
        with_defaults: Whether values equal to their default are written too.

    Returns:
        What `convert` reads back to an equal Struct. Sizes are numbers.
    """
    if isinstance(value, msgspec.Struct):
        plain = {}
        for field in fields_of(type(value)):
            found = getattr(value, field.name)
            if found is None or (
                not with_defaults and not field.is_required and found == field.default
            ):
                continue
            plain[field.spelled(spelling)] = to_plain(
                found, spelling=spelling, with_defaults=with_defaults
            )
        return plain
    if isinstance(value, tuple):
        return [to_plain(v, spelling=spelling, with_defaults=with_defaults) for v in value]
    if isinstance(value, dict):
        return {
            key: to_plain(v, spelling=spelling, with_defaults=with_defaults)
            for key, v in value.items()
        }
    return value.value if hasattr(value, "value") else value
