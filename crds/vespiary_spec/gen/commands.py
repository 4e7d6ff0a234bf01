"""Sections of reference pages on commands, made from the commands themselves.

Owns the form of a section. Called by the generators of the programs, which stand above this
package (`__main__.PLUGS`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click


def command_section(command: click.Command, name: str) -> Iterator[str]:
    """Yield the lines of a command's section, and of those of its own commands.

    Args:
        command: The command.
        name: What users type, such as `vespiary journal print`.
    """
    if isinstance(command, click.Group):
        yield from (f"### {name}", "", _text(command), "")
        for child in command.commands.values():
            yield from command_section(child, f"{name} {child.name}")
        return
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    usage = " ".join(_shown(argument) for argument in arguments)
    yield from (f"### {name}", "", f"`{name} [OPTIONS] {usage}".rstrip() + "`", "")
    yield from (_text(command), "")
    yield from option_table(command)


def option_table(command: click.Command) -> Iterator[str]:
    """Yield the lines of a table of a command's options, none if it has none."""
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        yield from ("| Option | Default | Meaning |", "|---|---|---|")
        yield from (_row(option) for option in options)
        yield ""


def _shown(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _text(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag and not option.count:
        names += f" {option.make_metavar(click.Context(click.Command('x')))}".replace("|", "\\|")
    default = "" if not option.show_default else f"`{option.default}`"
    variable = f" Also `{option.envvar}`." if isinstance(option.envvar, str) else ""
    meaning = (option.help or "").replace("|", "\\|")
    return f"| {names} | {default} | {meaning}{variable} |"
