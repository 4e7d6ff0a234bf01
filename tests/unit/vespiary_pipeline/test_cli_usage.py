"""`vespiary-pipeline` before Spark starts: help, usage, paths that hold nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from vespiary_pipeline import cli, cli_common, session

COMMANDS = sorted(cli.main.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: main " + name)


def test_help_needs_no_spark() -> None:
    program = (
        "import sys, vespiary_pipeline.cli as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"register"}))  # needs no Spark
def test_a_path_without_a_journal_is_told_before_spark_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_common, "start_session", lambda: pytest.fail("Spark was started"))
    more = {
        "export": ["--to", str(tmp_path / "lake")],
        "replay": ["--dry-run"],
        "diff": [str(tmp_path)],
        "import": ["--to", str(tmp_path / "new")],
    }.get(name, [])
    result = CliRunner().invoke(cli.main, [name, str(tmp_path), "--json", *more])
    assert result.exit_code == 1
    assert "nothing of a broker lies here" in result.stderr
    assert json.loads(result.stdout)["where"] == str(tmp_path)


def test_wrong_usage_is_exit_code_2() -> None:
    assert CliRunner().invoke(cli.main, ["live"]).exit_code == 2
    assert CliRunner().invoke(cli.main, ["live", "x", "--on-corrupt", "hope"]).exit_code == 2


def test_settings_of_spark_reach_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(session, "local_session", given.append)
    with click.Context(cli.main).scope():
        cli.main.callback(settings=("spark.a=1", "spark.b=x=y", "spark.a=2"), quiet=False)
        cli_common.start_session()
    assert given == [{"spark.a": "2", "spark.b": "x=y"}]


@pytest.mark.parametrize("setting", ["driver.memory=1g", "spark.a", "=1"])
def test_what_is_no_setting_of_spark_is_wrong_usage(setting: str) -> None:
    found = CliRunner().invoke(cli.main, ["--conf", setting, "live", "x"])
    assert found.exit_code == 2
    assert "spark.NAME=VALUE" in found.stderr
