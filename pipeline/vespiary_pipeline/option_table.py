"""What options are made of: values, the table of one format, and how what users gave is read.

Owns the ways of writing a value, and the refusals that all options share. Spark hands keys in lower
case and all values as text, so names are found without regard to case. The reference page is made
of the same tables. Called by the modules that have a table, and by `cli_reference`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from vespiary_spec import units
from vespiary_spec.errors import ConfigError, QuantityError, UnknownSetting

NOT_SAID: Final = "–"
"""Of an option that has no default of its own."""

_NUMBER_MAX: Final = 2**63 - 1


class Value(NamedTuple):
    """How a value is written.

    Attributes:
        allowed: What is, in words.
        read: Returns the value for its text; ConfigError if it is none.
        shown: Returns the text of a default.
    """

    allowed: str
    read: Callable[[str], Any]
    shown: Callable[[Any], str] = lambda value: str(value) if value else NOT_SAID


class Option(NamedTuple):
    """One option as users write it.

    Attributes:
        field: Of the options that it becomes.
        value: How its value is written.
        meaning: What it says, one sentence without a full stop.
    """

    field: str
    value: Value
    meaning: str


class OptionTable(NamedTuple):
    """The options of one format.

    Attributes:
        what: What they are options of, as a refusal says it.
        options: By the names that users write.
        fields: The NamedTuple that they become, which has the defaults.
    """

    what: str
    options: Mapping[str, Option]
    fields: type[tuple[Any, ...]]

    def read(self, given: Mapping[str, str], passed_over: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields that were given.

        Args:
            given: Spark's options: names in any case, values as text.
            passed_over: Names, in lower case, that are somebody else's.

        Raises:
            UnknownSetting: A name is none of these; the nearest one is told.
            ConfigError: A value is not allowed.
        """
        spelled = {name.lower(): name for name in self.options}
        found: dict[str, Any] = {}
        for key, text in given.items():
            name = spelled.get(key.lower())
            if name is None:
                if key.lower() in passed_over:
                    continue
                near = difflib.get_close_matches(key.lower(), spelled, 1)
                raise UnknownSetting(
                    f"this is no option of {self.what}",
                    path=key,
                    allowed=", ".join(self.options),
                    cure=f"did you mean {spelled[near[0]]}?" if near else "",
                )
            option = self.options[name]
            try:
                found[option.field] = option.value.read(text)
            except ConfigError as error:
                raise ConfigError(
                    error.what, path=name, value=error.measured, allowed=error.allowed
                ) from error
        return found

    def default(self, name: str) -> str:
        """Return the default of an option as users would write it; `NOT_SAID` for none."""
        option = self.options[name]
        defaults: dict[str, Any] = self.fields._field_defaults  # type: ignore[attr-defined]
        if option.field not in defaults:
            return NOT_SAID
        return option.value.shown(defaults[option.field])


def refused(text: object, allowed: str) -> ConfigError:
    """Return what is said of a value that is none."""
    return ConfigError("this is no value of the option", value=text, allowed=allowed)


TEXT: Final = Value("text", str)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise refused(text, "true or false")
    return text.lower() == "true"


FLAG: Final = Value("true or false", _flag, lambda value: str(value).lower())


def size(low: int, high: int | None = None) -> Value:
    """Return how sizes are written, from a lowest one on, up to a highest if there is one."""
    allowed = f"a size of {units.format_size(low)} or more, as 8m or 65536"
    if high is not None:
        allowed = f"a size from {units.format_size(low)} to {units.format_size(high)}, as 8m"

    def read(text: str) -> int:
        try:
            found = units.parse_size(text)
        except QuantityError as error:
            raise refused(text, allowed) from error
        if found < low or (high is not None and found > high):
            raise refused(text, allowed)
        return found

    return Value(allowed, read, lambda value: units.format_size(value).removesuffix("iB").lower())


def number(low: int) -> Value:
    """Return how whole numbers are written, from a lowest one on."""
    allowed = f"a whole number of {low} or more"

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise refused(text, allowed)
        return int(text)

    def shown(value: int) -> str:
        return str(value) if max(low, 1) <= value < _NUMBER_MAX else NOT_SAID  # 0: no bound

    return Value(allowed, read, shown)


def one_of(*values: str) -> Value:
    """Return how one of some words is written."""
    allowed = ", ".join(values)

    def read(text: str) -> str:
        if text.lower() not in values:
            raise refused(text, allowed)
        return text.lower()

    return Value(allowed, read)


def listed(text: str) -> list[str]:
    """Return the words of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


NAMES: Final = Value("names, with commas", lambda text: tuple(listed(text)))
