"""Exports as an Iceberg table in a catalogue: its metadata names their files where they are.

Owns: what an export is in an Iceberg table, and the catalogue that lies beside the exports. Must
never write or move a Parquet file. Called by `registering`.

    DIR/_iceberg/catalog.db                     the catalogue, if none is named
    DIR/_iceberg/vespiary/messages/metadata/…   the metadata of its table

The number of the last export is a property of the table, set by the commit that adds the files of
the export, so it outlives the snapshots. The library's `add_files` is not used: it takes the values
of partitions from the statistics of files, and columns that stand in paths have none.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vespiary_pipeline.lake.exported_files import PARTITIONS, LakeExport, LakeFile
from vespiary_pipeline.lake.registering import Conflict, LastExport, made_at
from vespiary_spec.errors import RegistrationRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

LOCAL: Final = "_iceberg"
LOCAL_CATALOG: Final = "default"
"""Name of the catalogue beside the exports; a SQL catalogue keeps tables by it."""
TABLE: Final = "vespiary.messages"
_FOLDER: Final = "vespiary.folder"
_NUMBER: Final = "vespiary.export"
_MADE_AT: Final = "vespiary.export.made-at"
_JOURNAL: Final = "vespiary.journal"
_EPOCH: Final = datetime.date(1970, 1, 1)


class IcebergExports:
    """An Iceberg table of a folder of exports. Owner: the thread that registers.

    Args:
        folder: The folder of the exports.
        name: Of the table, with its namespace, dots between.
        catalog: Name of the catalogue in the configuration of pyiceberg; empty: the one beside
            the exports.
        properties: Of the catalogue, besides those of the configuration.

    Raises:
        RegistrationRefused: The library is not installed, or the folder's name is none for it.
    """

    form = "iceberg"

    def __init__(
        self,
        folder: Path,
        name: str = TABLE,
        catalog: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import pyiceberg.catalog  # noqa: F401 - the rest of it takes a second
        except ImportError as error:
            raise RegistrationRefused(
                "pyiceberg is not installed", cure="install it: pip install 'vespiary[lake]'"
            ) from error
        self._folder = folder.resolve()
        if set("#?%") & set(str(self._folder)):
            raise RegistrationRefused(
                "the name of the folder is no location for Iceberg",
                where=str(self._folder),
                allowed="a path without #, ? and %",
                cure="export to another folder",
            )
        self.name = name
        self.place = None if catalog else self._folder / LOCAL
        self._catalog_name = catalog or LOCAL_CATALOG
        self._properties = dict(properties or {})
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    @property
    def version(self) -> int | None:
        """Id of the snapshot that was looked at last; None: there is none."""
        snapshot = None if self._table is None else self._table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def look(self) -> LastExport | None:
        """Look at the table; see `LakeTable`."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._table = self._open().load_table(self.name)
        except NoSuchTableError:
            return None
        self._check_own(self._table)
        number = self._table.properties.get(_NUMBER)
        if number is None:
            return None
        when = datetime.datetime.fromisoformat(self._table.properties[_MADE_AT])
        return LastExport(int(number), when)

    def add(self, export: LakeExport) -> None:
        """Add an export in one commit; see `LakeTable`."""
        from pyiceberg.exceptions import CommitFailedException

        table = self._table or self._make(export.schema)
        # The library would put files of ours behind a commit of another run that added them too.
        table.metadata = without_retries(table.metadata)
        told = {
            _NUMBER: str(export.manifest.number),
            _MADE_AT: made_at(export.manifest).isoformat(),
        }
        about = {**told, _JOURNAL: export.manifest.journal_id}
        try:
            with table.transaction() as transaction:
                with transaction.update_schema() as columns:
                    columns.union_by_name(export.schema)
                with transaction.update_snapshot(about).fast_append() as snapshot:
                    for file in data_files(export.files, transaction.table_metadata):
                        snapshot.append_data_file(file)
                transaction.set_properties(told)
        except CommitFailedException as error:
            raise Conflict from error

    def _open(self) -> Catalog:
        if self._catalog is None:
            from pyiceberg.catalog import load_catalog

            properties = self._properties
            if self.place is not None:
                self.place.mkdir(exist_ok=True)
                properties = {
                    "type": "sql",
                    "uri": f"sqlite:///{self.place}/catalog.db",
                    "warehouse": f"file://{self.place}",
                }
            self._catalog = load_catalog(self._catalog_name, **properties)
        return self._catalog

    def _make(self, columns: pa.Schema) -> Table:
        """Make the table without rows, its partitions in the same commit."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.table import TableProperties

        catalog = self._open()
        catalog.create_namespace_if_not_exists(catalog.namespace_from(self.name))
        properties = {
            _FOLDER: str(self._folder),
            # Bounds of bodies would be pieces of messages in the metadata.
            f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.body": "counts",
        }
        try:
            with catalog.create_table_transaction(
                self.name, columns, properties=properties
            ) as transaction:
                with transaction.update_spec() as partitions:
                    for name in PARTITIONS:
                        partitions.add_identity(name)
                # Spark's files have no ids of columns: they are found by their names.
                names = transaction.table_metadata.schema().name_mapping
                transaction.set_properties(
                    {TableProperties.DEFAULT_NAME_MAPPING: names.model_dump_json()}
                )
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise Conflict from error
        if self.look() is not None or self._table is None:
            raise Conflict
        return self._table

    def _check_own(self, table: Table) -> None:
        where = f"{self.form} table {self.name}"
        owner = table.properties.get(_FOLDER)
        if owner != str(self._folder):
            raise RegistrationRefused(
                "the table is not of this folder's exports",
                where=where,
                measured=owner or "a table that no registration made",
                allowed=str(self._folder),
                cure="name another table with --table",
            )
        schema = table.schema()
        parts = [
            (schema.find_column_name(field.source_id), str(field.transform))
            for field in table.spec().fields
        ]
        if parts != [(name, "identity") for name in PARTITIONS]:
            raise RegistrationRefused(
                "the partitions of the table were changed",
                where=where,
                measured=", ".join(f"{transform}({name})" for name, transform in parts) or "none",
                allowed=", ".join(f"identity({name})" for name in PARTITIONS),
                cure="change them back, or name another table with --table",
            )


def without_retries(metadata: TableMetadata) -> TableMetadata:
    """Return what a table says of itself, so that the library commits once and does not retry.

    Args:
        metadata: As the catalogue gave it, which keeps it as it is.
    """
    from pyiceberg.table import TableProperties

    once = {TableProperties.COMMIT_NUM_RETRIES: "0"}
    return metadata.model_copy(update={"properties": {**metadata.properties, **once}})


def data_files(files: tuple[LakeFile, ...], metadata: TableMetadata) -> Iterator[DataFile]:
    """Yield what a manifest of Iceberg says of files.

    Args:
        files: The files.
        metadata: Of the table, with their columns.
    """
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    columns = parquet_path_to_id_mapping(metadata.schema())
    for file in files:
        statistics = data_file_statistics_from_parquet_metadata(file.footer, plan, columns)
        day = None if file.day is None else (file.day - _EPOCH).days
        yield DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file://{file.absolute}",
            file_format=FileFormat.PARQUET,
            partition=Record(file.address, day),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
