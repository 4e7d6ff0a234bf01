"""`vespiary-pipeline register`, and `export --register` before Spark starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vespiary_pipeline import cli, cli_common
from vespiary_testkit.lake_exports import FORMS, exported, registered, write_export

ORDERS = "address=orders/day=2026-11-22"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    write_export(tmp_path / "lake", [ORDERS], 0)
    return tmp_path / "lake"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["register", *arguments])


@pytest.mark.parametrize("form", FORMS)
def test_it_says_what_was_added(lake: Path, form: str) -> None:
    name = str(lake) if form == "delta" else "vespiary.messages"
    first = run(str(lake), "--format", form)
    assert first.output == (
        f"{lake}: 1 exports (2 messages in 1 files) registered in {form} table {name}\n"
    )
    assert (
        run(str(lake), "--format", form).output == f"{lake}: nothing new for {form} table {name}\n"
    )
    assert registered(lake, form) == exported(lake)


def test_it_says_it_as_an_object(lake: Path) -> None:
    found = json.loads(run(str(lake), "--format", "delta", "--json").stdout)
    assert found == {
        "folder": str(lake), "format": "delta", "table": str(lake), "exports": 1, "files": 1,
        "messages": 2, "last_export": 1, "version": 1,
    }  # fmt: skip


def test_a_catalogue_comes_from_the_configuration_of_pyiceberg(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    given = [part for each in properties.items() for part in ("--property", "=".join(each))]
    given += ["--property", f"warehouse=file://{tmp_path}/house"]
    done = run(
        str(lake), "--format", "iceberg", "--catalog", "prod", "--table", "sales.orders", *given
    )
    assert done.exit_code == 0, done.output
    assert not (lake / "_iceberg").exists()
    catalog = load_catalog("prod", **properties)
    assert catalog.load_table("sales.orders").scan().to_arrow().num_rows == 2
    catalog.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format", "delta", "--table", "a.b"], "are for Iceberg"),
        (["--format", "iceberg", "--table", "messages"], "NAMESPACE.NAME"),
        (["--format", "iceberg", "--property", "uri=x"], "name it with --catalog"),
        (["--format", "iceberg", "--catalog", "a", "--property", "uri"], "NAME=VALUE"),
        (["--format", "hudi"], "'hudi' is not one of"),
        ([], "Missing option '--format'"),
    ],
)
def test_wrong_usage_is_exit_code_2(lake: Path, arguments: list[str], sentence: str) -> None:
    done = run(str(lake), *arguments)
    assert done.exit_code == 2
    assert sentence in done.output
    assert not (lake / "_delta_log").exists()


def test_a_folder_without_exports_is_one_sentence(tmp_path: Path) -> None:
    done = run(str(tmp_path), "--format", "delta", "--json")
    assert done.exit_code == 1
    assert "no export was written here" in done.stderr
    assert json.loads(done.stdout)["code"] == "VSP-D108"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--register", "delta", "--catalog", "prod"], 2, "are for Iceberg"),
        (["--register", "delta"], 1, "deltalake is not installed"),
    ],
)
def test_an_export_says_before_spark_starts_what_is_wrong_with_its_table(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli_common, "start_session", lambda: pytest.fail("Spark was started"))
    monkeypatch.setitem(sys.modules, "deltalake", None)
    to = str(tmp_path / "lake")
    done = CliRunner().invoke(cli.main, ["export", str(tmp_path), "--to", to, *arguments])
    assert (done.exit_code, sentence in done.output) == (code, True), done.output


@pytest.mark.ci
@pytest.mark.parametrize("form", FORMS)
def test_spark_is_not_needed(lake: Path, form: str) -> None:
    program = (
        "import sys, vespiary_pipeline.cli as cli\n"
        f"try: cli.main(['register', {str(lake)!r}, '--format', {form!r}])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
