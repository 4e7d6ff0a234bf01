"""`vespiary-pipeline register`: exports of a folder into a Delta or Iceberg table, without Spark.

Owns the command, and the options of tables that `export` shares. Must never import a library of
tables before a table is asked for. Called by `cli`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from vespiary_pipeline import cli_common
from vespiary_pipeline.options import local_path

if TYPE_CHECKING:
    from vespiary_pipeline.lake.registering import LakeTable, RegisterResult

FORMS: Final = ["delta", "iceberg"]
_DEFAULT_TABLE: Final = "vespiary.messages"
F = TypeVar("F", bound=Callable[..., Any])


def table_options(function: F) -> F:
    """Add the options that say which table of a catalogue is meant."""
    for option in (
        click.option(
            "--property",
            "properties",
            metavar="NAME=VALUE",
            multiple=True,
            help="A property of that catalogue. Repeatable.",
        ),
        click.option(
            "--catalog",
            default="",
            help="Iceberg catalogue, as pyiceberg's configuration names it; else one beside the"
            " exports.",
        ),
        click.option(
            "--table",
            default="",
            metavar="NAMESPACE.NAME",
            help=f"Iceberg table; {_DEFAULT_TABLE} if it is not named.",
        ),
    ):
        function = option(function)
    return function


class Tables:
    """The tables that a command names.

    Args:
        folder: Folder of the exports.
        forms: Their formats.
        table: Name of an Iceberg table; empty: the usual one.
        catalog: Its catalogue; empty: the one beside the exports.
        properties: Of the catalogue, NAME=VALUE.

    Raises:
        RegistrationRefused: A library is not installed.
        click.UsageError: The options do not go together.
    """

    def __init__(
        self,
        folder: Path,
        forms: tuple[str, ...],
        *,
        table: str,
        catalog: str,
        properties: tuple[str, ...],
    ) -> None:
        if (table or catalog or properties) and "iceberg" not in forms:
            raise click.UsageError("--table, --catalog and --property are for Iceberg")
        if properties and not catalog:
            raise click.UsageError("--property is of a catalogue: name it with --catalog")
        if table and ("." not in table or "" in table.split(".")):
            raise click.BadParameter("write NAMESPACE.NAME", param_hint="'--table'")
        pairs = [each.partition("=") for each in properties]
        if not all(name and equals for name, equals, _ in pairs):
            raise click.BadParameter("write NAME=VALUE", param_hint="'--property'")
        self._folder = folder
        self._catalog = catalog
        self._table = table or _DEFAULT_TABLE
        self._properties = {name: value for name, _, value in pairs}
        self._tables = [self._open(form) for form in dict.fromkeys(forms)]

    def register(self, *, is_json: bool) -> None:
        """Register in each table what it lacks, one after the other, and print what was done.

        Args:
            is_json: Print an object a line.

        Raises:
            RegistrationRefused: A table cannot take the exports.
            ExportRefused: A manifest of the folder cannot be read.
        """
        from vespiary_pipeline.lake.registering import register as registered

        for table in self._tables:
            done = registered(self._folder, table)
            shown = {name: getattr(done, name) for name in done.__slots__}
            click.echo(json.dumps(shown) if is_json else _line(done))

    def _open(self, form: str) -> LakeTable:
        if form == "delta":
            from vespiary_pipeline.lake.delta import DeltaExports

            return DeltaExports(self._folder)
        from vespiary_pipeline.lake.iceberg import IcebergExports

        return IcebergExports(self._folder, self._table, self._catalog, self._properties)


def _line(result: RegisterResult) -> str:
    table = f"{result.format} table {result.table}"
    if not result.exports:
        return f"{result.folder}: nothing new for {table}"
    what = f"{result.exports} exports ({result.messages} messages in {result.files} files)"
    return f"{result.folder}: {what} registered in {table}"


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--format", "form", type=click.Choice(FORMS), required=True, help="Of the table.")
@table_options
@click.option("--json", "is_json", is_flag=True, help="An object a line.")
@cli_common.told_without_spark
def register(folder: str, form: str, is_json: bool, **named: Any) -> None:
    """Add the exports in DIR that a Delta or Iceberg table lacks to it.

    The files stay where they are: only metadata is written, and Spark is not needed.
    """
    Tables(Path(local_path(folder)), (form,), **named).register(is_json=is_json)
