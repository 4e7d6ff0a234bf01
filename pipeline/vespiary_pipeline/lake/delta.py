"""Exports as a Delta table: its log lies beside them, and names their files where they are.

Owns: what an export is in a Delta log. Must never write or move a Parquet file. Called by
`registering`.

    DIR/_delta_log/00000000000000000000.json    the table, without rows
    DIR/_delta_log/00000000000000000001.json    its first export: its files, its number

The number of the export is an application transaction (`txn`) of the commit that adds its files.
Delta keeps the last one of each application in its checkpoints too, and refuses a commit if another
one with the same application came between.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vespiary_pipeline.lake.exported_files import PARTITIONS, LakeExport, LakeFile
from vespiary_pipeline.lake.registering import Conflict, LastExport, made_at
from vespiary_spec.errors import RegistrationRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_NUMBER: Final = "vespiary.export"
_MADE_AT: Final = "vespiary.export.made-at"
_LOG: Final = "_delta_log"
_NAME: Final = "vespiary_messages"
_DESCRIPTION: Final = "Messages that vespiary-pipeline exported"
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class DeltaExports:
    """The Delta table of a folder of exports. Owner: the thread that registers.

    Args:
        folder: The folder of the exports.

    Raises:
        RegistrationRefused: The library is not installed.
    """

    form = "delta"

    def __init__(self, folder: Path) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise RegistrationRefused(
                "deltalake is not installed", cure="install it: pip install 'vespiary[lake]'"
            ) from error
        self._library = deltalake
        self._folder = folder.absolute()
        self._table: DeltaTable | None = None
        self.name = str(folder)
        self.place = self._folder / _LOG

    @property
    def version(self) -> int | None:
        """Version that was looked at last; None: there is no table."""
        return None if self._table is None else self._table.version()

    def look(self) -> LastExport | None:
        """Look at the table; see `LakeTable`."""
        if not self._library.DeltaTable.is_deltatable(str(self._folder)):
            return None
        # Afresh: versions of the library differ in what an update of an open table brings.
        self._table = self._library.DeltaTable(str(self._folder))
        number = self._table.transaction_version(_NUMBER)
        made_at_s = self._table.transaction_version(_MADE_AT)
        if number is None or made_at_s is None:
            self._check_own(self._table)
            return None
        return LastExport(number, datetime.datetime.fromtimestamp(made_at_s, datetime.UTC))

    def add(self, export: LakeExport) -> None:
        """Add an export in one commit; see `LakeTable`."""
        schema = self._library.Schema.from_arrow(export.schema)
        table = self._table or self._make(schema)
        self._fit(table, export.schema)
        made_at_s = int(made_at(export.manifest).timestamp())
        properties = self._library.CommitProperties(
            custom_metadata={
                _NUMBER: str(export.manifest.number),
                "vespiary.journal": export.manifest.journal_id,
            },
            app_transactions=[
                self._library.Transaction(_NUMBER, export.manifest.number),
                self._library.Transaction(_MADE_AT, made_at_s),
            ],
        )
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        actions: list[Any] = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values={
                    "address": file.address,
                    "day": None if file.day is None else file.day.isoformat(),
                },
                modification_time=file.modified_ms,
                data_change=True,
                stats=json.dumps(statistics(file)),
            )
            for file in export.files
        ]
        try:
            table.create_write_transaction(
                actions, "append", schema, [*PARTITIONS], commit_properties=properties
            )
        except CommitFailedError as error:
            raise Conflict from error

    def _make(self, schema: Any) -> DeltaTable:
        """Make the table without rows.

        Not together with its first files: where two make it at once, the library may write the
        second one behind the first, and without files that changes nothing.
        """
        self._table = self._library.DeltaTable.create(
            str(self._folder),
            schema,
            mode="ignore",
            partition_by=[*PARTITIONS],
            name=_NAME,
            description=_DESCRIPTION,
        )
        if self.look() is not None:
            raise Conflict
        return self._table

    def _check_own(self, table: DeltaTable) -> None:
        if table.metadata().description != _DESCRIPTION:
            raise RegistrationRefused(
                "there is a Delta table here already that no registration made",
                where=str(self.place),
                cure="remove the folder _delta_log, which leaves the exports as they are, and"
                " register again",
            )

    def _fit(self, table: DeltaTable, columns: pa.Schema) -> None:
        """Give the table the columns of an export that it has not."""
        known = {field.name: field for field in table.schema().fields}
        wanted = {field.name: field for field in self._library.Schema.from_arrow(columns).fields}
        for name, field in wanted.items():
            if name in known and known[name].type != field.type:
                raise RegistrationRefused(
                    f"the column {name} of an export has another type than in the table",
                    where=f"{self.form} table {self.name}",
                    measured=str(field.type),
                    allowed=str(known[name].type),
                    cure="export to another folder",
                )
        if new := [field for name, field in wanted.items() if name not in known]:
            table.alter.add_columns(new)


def statistics(file: LakeFile) -> dict[str, Any]:
    """Return the statistics of a file in Delta's form.

    Args:
        file: The file.
    """
    ranges = file.ranges()
    return {
        "numRecords": file.footer.num_rows,
        "minValues": {
            name: _shown(each.low, is_high=False)
            for name, each in ranges.items()
            if each.low is not None
        },
        "maxValues": {
            name: _shown(each.high, is_high=True)
            for name, each in ranges.items()
            if each.high is not None
        },
        "nullCount": {name: each.nulls for name, each in ranges.items() if each.nulls is not None},
    }


def _shown(value: Any, *, is_high: bool) -> Any:
    """Return a bound for JSON, where times have milliseconds and must not shut anything out."""
    if not isinstance(value, datetime.datetime):
        return value
    cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
    bound = cut + _MILLISECOND if is_high and cut < value else cut
    return bound.isoformat(timespec="milliseconds").replace("+00:00", "Z")
