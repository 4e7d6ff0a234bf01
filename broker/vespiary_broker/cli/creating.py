"""`vespiary create`: the folder of a new broker, with every setting written down.

Owns: the commented broker.yaml, made from the model, so it lists what this version supports and
nothing else. Called by `program`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import yaml
from msgspec import inspect

from vespiary_broker.app.user_changes import add_user
from vespiary_broker.cli import terminal
from vespiary_broker.cli.credentials import (
    password_file_option,
    read_password,
    short_password_option,
)
from vespiary_broker.cli.terminal import CommandFailed
from vespiary_broker.engine.users import check_password_length
from vespiary_spec import configuration as configurations
from vespiary_spec.conversion import to_plain, usable_fields
from vespiary_spec.gen.schema import shown_default
from vespiary_spec.model import FieldModel, Spelling
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings, Configuration
from vespiary_spec.version import VERSION

CONFIGURATION_NAME: Final = "broker.yaml"
_WIDTH: Final = 96
_HEAD: Final = """\
# Configuration of a Vespiary broker: `vespiary run -c {name}`.
# Every setting of version {version} is here with its default, commented out. Take the `#` away to
# change one. Sizes take suffixes (10MiB), durations too (500ms). `vespiary check -c {name}` says
# whether all is well.
"""


@click.command("create", short_help="Make the folder of a new broker.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--user", metavar="NAME", help="Add a first user, with the role admin.")
@password_file_option
@short_password_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Write a setting with another value than its default. May be repeated.",
)
def create(
    folder: Path,
    user: str | None,
    password_file: Path | None,
    is_short_allowed: bool,
    overrides: tuple[str, ...],
) -> None:
    """Make DIR with a commented broker.yaml, a data folder, and a first user if one is named.

    Nothing that exists is changed.
    """
    target = folder / CONFIGURATION_NAME
    if target.exists():
        raise CommandFailed(f"{target} exists already; nothing was changed")
    chosen: dict[str, Any] = {}
    for override in overrides:
        configurations.apply_override(chosen, override)
    text = commented_configuration(chosen)
    configuration = configurations.from_plain(configurations.parse_yaml(text))
    password = read_password(user, password_file, is_new=True) if user is not None else ""
    if user is not None:
        check_password_length(user, password, is_short_allowed=is_short_allowed)
    data = folder / configuration.data_directory
    try:
        data.mkdir(mode=0o750, parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandFailed(f"{folder} cannot be made: {error}") from error
    if user is not None:
        users = data / (configuration.security.users_file or "users")
        add_user(users, user, password, roles=("admin",), is_short_allowed=is_short_allowed)
        terminal.echo(f"user {user} with the role admin in {users}")
    terminal.echo(f"made {target}")
    terminal.echo(f"try  vespiary run -c {target}")


def commented_configuration(chosen: dict[str, Any]) -> str:
    """Return a broker.yaml with every setting.

    Args:
        chosen: Parsed settings that are written with their values; all others are comments.
    """
    lines = _HEAD.format(name=CONFIGURATION_NAME, version=VERSION).splitlines()
    for field in usable_fields(Configuration, Spelling.KEBAB):
        name = field.spelled(Spelling.KEBAB)
        lines += ["", *_comment(field)]
        if name in chosen:
            lines += _dumped({name: chosen[name]})
        else:
            lines += [f"#{line}" for line in _default_lines(field, name)]
    return "\n".join([*lines, ""])


def _comment(field: FieldModel, indent: str = "") -> Iterator[str]:
    allowed = field.facts.allowed()
    if isinstance(field.type, inspect.EnumType):
        allowed = ", ".join(member.value for member in field.type.cls)
    text = field.description + (f" Allowed: {allowed}." if allowed else "")
    lead = f"{indent}# "
    yield from (lead + line for line in textwrap.wrap(text, _WIDTH - len(lead)))


def _default_lines(field: FieldModel, name: str) -> list[str]:
    """Return a setting with its default, as it would stand in the file."""
    kind = field.type
    if isinstance(kind, inspect.StructType):
        return [f"{name}:", *_struct_lines(kind.cls)]
    if name == "address-settings":
        return [f"{name}:", '  "#":', *_match_lines()]
    if name == "addresses":
        example = [{"name": "orders", "queues": [{"name": "orders", "routing-type": "ANYCAST"}]}]
        return _dumped({name: example})
    if field.facts.key:
        return _dumped({name: to_plain(field.default, spelling=Spelling.KEBAB, with_defaults=True)})
    return [_line(field, name)]


def _line(field: FieldModel, name: str) -> str:
    if field.default is None:
        return f"{name}:  # {field.facts.default_text}".rstrip()
    value = field.default
    is_plain = field.facts.default_text or isinstance(value, str)
    text = "" if is_plain else shown_default(field, Spelling.KEBAB)
    return f"{name}: {text or _scalar(value)}"


def _scalar(value: object) -> str:
    plain = to_plain(value, spelling=Spelling.KEBAB)
    return str(yaml.safe_dump(plain, default_flow_style=True)).removesuffix("\n...\n").strip()


def _struct_lines(struct: type[msgspec.Struct]) -> Iterator[str]:
    for field in usable_fields(struct, Spelling.KEBAB):
        yield from (f" {line}" for line in _comment(field, " "))
        yield f"  {_line(field, field.spelled(Spelling.KEBAB))}"


def _match_lines() -> Iterator[str]:
    for field in usable_fields(AddressSettings, Spelling.KEBAB):
        value = getattr(ADDRESS_DEFAULTS, field.name)
        yield from (f"   {line}" for line in _comment(field, " "))
        yield f"    {field.spelled(Spelling.KEBAB)}: {_scalar(value)}"


def _dumped(value: dict[str, Any]) -> list[str]:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return str(text).splitlines()
