"""Tables of a lake: columns, statistics, and what is refused with the table as it was."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from vespiary_pipeline.jobs.export_folder import ExportFolder
from vespiary_pipeline.lake.exported_files import partition_of, read_export
from vespiary_pipeline.lake.iceberg import IcebergExports
from vespiary_pipeline.lake.registering import register
from vespiary_spec.errors import RegistrationRefused
from vespiary_testkit.lake_exports import (
    BODY,
    FORMS,
    exported,
    iceberg_table,
    registered,
    table_of,
    write_export,
)

ORDERS = "address=orders/day=2026-11-22"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add(lake: Path, form: str) -> int:
    return register(lake, table_of(lake, form)).exports


def metadata(lake: Path) -> bytes:
    """Return all that was written besides the exports."""
    folders = (lake / "_delta_log", lake / "_iceberg")
    return b"".join(
        path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()
    )


def delta_actions(lake: Path, kind: str) -> list[dict[str, Any]]:
    lines = [
        json.loads(line)
        for path in sorted((lake / "_delta_log").glob("*.json"))
        for line in path.read_text().splitlines()
    ]
    return [line[kind] for line in lines if kind in line]


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("is_first", [True, False])
def test_bodies_may_come_or_be_left_out_later(lake: Path, form: str, is_first: bool) -> None:
    write_export(lake, [ORDERS], 0, has_bodies=is_first)
    add(lake, form)
    write_export(lake, [ORDERS], 2, has_bodies=not is_first)
    assert add(lake, form) == 1
    bodies = [row["body"] for row in registered(lake, form)]
    assert bodies == [BODY if is_first else None] * 2 + [None if is_first else BODY] * 2


def test_a_column_of_another_type_is_refused(lake: Path, form: str) -> None:
    write_export(lake, [ORDERS], 0)
    add(lake, form)
    before = registered(lake, form)
    columns = pa.schema([("visible_position", pa.int64()), ("priority", pa.string())])
    with pytest.raises(TypeError):
        write_export(lake, [ORDERS], 2, columns=columns)  # 4 is no text
    columns = pa.schema([("visible_position", pa.int64()), ("body_bytes", pa.float64())])
    write_export(lake, [ORDERS], 2, columns=columns)
    with pytest.raises(RegistrationRefused, match="body_bytes"):
        add(lake, form)
    assert registered(lake, form) == before


def test_files_with_times_of_spark_s_own_are_refused(lake: Path, form: str) -> None:
    write_export(lake, [ORDERS], 0, is_int96=True)
    with pytest.raises(RegistrationRefused, match="INT96"):
        add(lake, form)


def test_types_of_the_columns(lake: Path) -> None:
    write_export(lake, [ORDERS], 0)
    for form in FORMS:
        add(lake, form)
    (delta,) = delta_actions(lake, "metaData")
    types = {field["name"]: field["type"] for field in json.loads(delta["schemaString"])["fields"]}
    assert {name: types[name] for name in ("arrival", "priority", "body", "address", "day")} == {
        "arrival": "timestamp", "priority": "byte", "body": "binary", "address": "string",
        "day": "date",
    }  # fmt: skip
    assert types["properties"]["keyType"] == "string"
    assert delta["partitionColumns"] == ["address", "day"]
    schema = iceberg_table(lake).schema()
    names = ("arrival", "priority", "body", "address", "day", "properties")
    assert [str(schema.find_type(name)) for name in names] == [
        "timestamptz", "int", "binary", "string", "date", "map<string, string>",
    ]  # fmt: skip


# --- statistics -----------------------------------------------------------------------------------


def test_delta_knows_the_bounds_of_files(lake: Path) -> None:
    write_export(lake, [ORDERS], 6)
    add(lake, "delta")
    (file,) = delta_actions(lake, "add")
    found = json.loads(file["stats"])
    assert found["numRecords"] == 2
    low, high, nulls = (found[name] for name in ("minValues", "maxValues", "nullCount"))
    assert (low["position"], high["position"]) == (6, 7)
    assert (low["arrival"], high["arrival"]) == (
        "2026-11-22T12:00:06.123Z", "2026-11-22T12:00:07.124Z"
    )  # fmt: skip
    assert (low["expires"], nulls["expires"], nulls["transaction"]) == (
        "2026-11-22T12:00:00.123Z", 1, 2
    )  # fmt: skip
    assert "transaction" not in low


def test_iceberg_knows_the_bounds_of_files(lake: Path) -> None:
    write_export(lake, [ORDERS], 6)
    add(lake, "iceberg")
    table = iceberg_table(lake)
    found = table.inspect.files().column("readable_metrics").to_pylist()[0]
    assert (found["position"]["lower_bound"], found["position"]["upper_bound"]) == (6, 7)
    assert found["arrival"]["upper_bound"].isoformat() == "2026-11-22T12:00:07.123456+00:00"
    assert found["transaction"]["null_value_count"] == 2


def test_both_leave_out_files_that_a_filter_does_not_ask_for(lake: Path) -> None:
    from deltalake import DeltaTable

    write_export(lake, [ORDERS, "address=007/day=2026-11-22"], 0)
    write_export(lake, [ORDERS], 10)
    for form in FORMS:
        add(lake, form)
    for text, files in (("address = '007'", 1), ("position >= 10", 1), ("address = 'x'", 0)):
        assert len(list(iceberg_table(lake).scan(row_filter=text).plan_files())) == files
    delta = DeltaTable(str(lake)).to_pyarrow_dataset()
    for is_wanted, files in ((ds.field("address") == "007", 1), (ds.field("position") >= 10, 1)):
        assert len(list(delta.get_fragments(filter=is_wanted))) == files


def test_no_piece_of_a_message_is_in_the_metadata(lake: Path) -> None:
    write_export(lake, [ORDERS], 0)
    for form in FORMS:
        add(lake, form)
    assert b"orders" in metadata(lake)
    assert b"secret" not in metadata(lake)
    (task,) = iceberg_table(lake).scan().plan_files()  # manifests are compressed
    bounds = [*task.file.lower_bounds.values(), *task.file.upper_bounds.values()]
    assert bounds
    assert not [bound for bound in bounds if b"secret" in bound]


# --- what is refused ------------------------------------------------------------------------------


def test_a_folder_without_exports_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(RegistrationRefused, match="no export was written here"):
        add(tmp_path, form)
    assert not list(tmp_path.iterdir())


def test_before_the_first_export_there_is_nothing_to_do(lake: Path, form: str) -> None:
    with ExportFolder(lake).writing():
        pass
    done = register(lake, table_of(lake, form))
    assert (done.exports, done.last_export, done.version) == (0, None, None)


def test_a_delta_table_of_somebody_else_is_left_alone(lake: Path) -> None:
    from deltalake import write_deltalake

    write_export(lake, [ORDERS], 0)
    write_deltalake(str(lake), pa.table({"theirs": [1]}))
    before = metadata(lake)
    with pytest.raises(RegistrationRefused, match="that no registration made"):
        add(lake, "delta")
    assert metadata(lake) == before


def test_an_iceberg_table_of_another_folder_is_left_alone(lake: Path, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    for folder in (lake, tmp_path / "other"):
        write_export(folder, [ORDERS], 0)
    shared = IcebergExports(lake, "a.messages", "prod", properties)
    assert register(lake, shared).exports == 1
    other = tmp_path / "other"
    with pytest.raises(RegistrationRefused, match="not of this folder's exports") as caught:
        register(other, IcebergExports(other, "a.messages", "prod", properties))
    assert caught.value.measured == str(lake)
    assert register(other, IcebergExports(other, "a.others", "prod", properties)).exports == 1
    assert not (lake / "_iceberg").exists()


def test_partitions_that_somebody_changed_are_told(lake: Path) -> None:
    write_export(lake, [ORDERS], 0)
    add(lake, "iceberg")
    with iceberg_table(lake).update_spec() as partitions:
        partitions.remove_field("day")
    write_export(lake, [ORDERS], 2)
    with pytest.raises(RegistrationRefused, match="partitions of the table were changed"):
        add(lake, "iceberg")


@pytest.mark.ci
@pytest.mark.parametrize("is_replaced", [True, False])
def test_exports_that_lost_their_numbers_are_told(lake: Path, form: str, is_replaced: bool) -> None:
    write_export(lake, [ORDERS], 0)
    write_export(lake, [ORDERS], 2)
    add(lake, form)
    shutil.rmtree(lake / "export=00000002")
    if is_replaced:
        write_export(lake, [ORDERS], 4)
    with pytest.raises(RegistrationRefused, match="export 2 in the table is not the one"):
        add(lake, form)
    if is_replaced:  # what the message says
        shutil.rmtree(lake / ("_delta_log" if form == "delta" else "_iceberg"))
        assert add(lake, form) == 2
        assert registered(lake, form) == exported(lake)


def test_an_old_export_may_be_removed(lake: Path, form: str) -> None:
    write_export(lake, [ORDERS], 0)
    write_export(lake, [ORDERS], 2)
    add(lake, form)
    shutil.rmtree(lake / "export=00000001")
    write_export(lake, [ORDERS], 4)
    assert add(lake, form) == 1


@pytest.mark.parametrize("data", [None, b"no Parquet"])
def test_a_file_that_is_missing_or_damaged_is_told(
    lake: Path, form: str, data: bytes | None
) -> None:
    write_export(lake, [ORDERS], 0)
    write_export(lake, [ORDERS], 2)
    path = lake / "export=00000002" / ORDERS / "part-2-0.parquet"
    path.unlink()
    if data:
        path.write_bytes(data)
    with pytest.raises(RegistrationRefused, match="a file of an export cannot be read"):
        add(lake, form)
    assert [row["visible_position"] for row in registered(lake, form)] == [0, 1] if not data else 1


@pytest.mark.parametrize(("form", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_library_that_is_missing_is_named(
    lake: Path, form: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RegistrationRefused) as caught:
        table_of(lake, form)
    assert str(caught.value) == (
        f"{library} is not installed. Install it: pip install 'vespiary[lake]'. [VSP-D108]"
    )


def test_a_catalogue_that_cannot_be_reached_is_told(lake: Path) -> None:
    write_export(lake, [ORDERS], 0)
    uri = {"type": "rest", "uri": "http://127.0.0.1:1"}
    with pytest.raises(RegistrationRefused, match="the table cannot be used"):
        register(lake, IcebergExports(lake, catalog="prod", properties=uri))


def test_a_folder_that_is_no_location_is_told(tmp_path: Path) -> None:
    with pytest.raises(RegistrationRefused, match="no location for Iceberg"):
        IcebergExports(tmp_path / "a#b")


@pytest.mark.parametrize(
    "path",
    ["export=1/a/b/part.parquet", "export=1/address=a/day=tuesday/p", "export=1/address=a/p"],
)
def test_paths_that_are_none_of_an_export_are_told(path: str) -> None:
    with pytest.raises(RegistrationRefused):
        partition_of(path)


def test_columns_that_differ_within_an_export_are_told(lake: Path) -> None:
    manifest = write_export(lake, [ORDERS, "address=b/day=2026-11-22"], 0)
    other = lake / "other"
    write_export(other, [ORDERS], 0, has_bodies=False)
    shutil.copy(
        other / "export=00000001" / ORDERS / "part-1-0.parquet",
        lake / "export=00000001" / ORDERS / "part-1-0.parquet",
    )
    with pytest.raises(RegistrationRefused, match="have different columns"):
        read_export(lake, manifest)
