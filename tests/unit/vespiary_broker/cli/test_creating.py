"""`vespiary create`: the commented configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.app.user_changes import read_users
from vespiary_broker.cli.creating import commented_configuration
from vespiary_broker.cli.program import run_program
from vespiary_spec import configuration as configurations
from vespiary_spec.conversion import usable_fields
from vespiary_spec.model import Spelling
from vespiary_spec.settings import Configuration


def uncommented(text: str) -> str:
    """Take the `#` off every setting; comments have a blank behind theirs, at any depth."""
    lines = []
    for line in text.splitlines():
        body = line.removeprefix("#")
        is_setting = not line.startswith("# ") or line.startswith("#  ")
        if is_setting and not body.lstrip().startswith("# "):
            lines.append(body)
    return "\n".join(lines)


def test_as_it_is_it_changes_nothing():
    text = commented_configuration({})
    assert configurations.from_plain(configurations.parse_yaml(text)) == Configuration()


def test_every_setting_is_there_with_a_default_that_is_taken():
    text = uncommented(commented_configuration({}))
    data = configurations.parse_yaml(text)
    names = {
        field.spelled(Spelling.KEBAB) for field in usable_fields(Configuration, Spelling.KEBAB)
    }
    assert set(data) == names
    found = configurations.from_plain(data)
    default = Configuration()
    for field in usable_fields(Configuration, Spelling.KEBAB):
        if field.name not in ("addresses", "address_settings"):  # examples
            assert getattr(found, field.name) == getattr(default, field.name), field.name
    assert found.address_settings["#"].auto_create_queues is True


def test_no_line_is_too_long():
    for line in commented_configuration({}).splitlines():
        assert len(line) <= 110, line


def test_it_makes_a_folder_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "orders"
    assert run_program(["create", str(folder), "--set", "journal-type=NIO"]) == 0
    assert f"vespiary run -c {folder}/broker.yaml" in capsys.readouterr().out
    configuration = configurations.load(folder / "broker.yaml")
    assert configuration.journal_type == "NIO"
    assert (folder / "data").is_dir()


def test_what_exists_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "broker.yaml").write_text("journal-type: NIO\n")
    assert run_program(["create", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "broker.yaml").read_text() == "journal-type: NIO\n"


def test_the_first_user_is_an_administrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_PASSWORD", "a-secret")
    assert run_program(["create", str(tmp_path), "--user", "root"]) == 0
    user = read_users(tmp_path / "data/users")["root"]
    assert user.roles == {"admin"}
    assert user.is_password("a-secret")


def test_a_wrong_setting_makes_nothing(tmp_path: Path):
    assert run_program(["create", str(tmp_path / "x"), "--set", "nope=1"]) == 1
    assert run_program(["create", str(tmp_path / "x"), "--set", "journal-type=FAST"]) == 1
    assert not (tmp_path / "x").exists()
