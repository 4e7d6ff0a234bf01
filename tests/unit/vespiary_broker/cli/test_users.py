"""`vespiary user`: passwords, hashes, the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_broker.app import user_changes
from vespiary_broker.app.user_changes import add_user, read_users, set_password
from vespiary_broker.cli.program import run_program
from vespiary_spec.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("VESPIARY_PASSWORD", "a-secret")
    return tmp_path / "data" / "users"


def user(path: Path, *arguments: str) -> int:
    return run_program(["user", *arguments, "--file", str(path)])


def test_a_user_is_added_with_a_salted_hash(path: Path):
    assert user(path, "add", "alice", "--role", "admin", "--role", "reader") == 0
    assert "a-secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    alice = read_users(path)["alice"]
    assert alice.is_password("a-secret")
    assert not alice.is_password("A-secret")
    assert alice.roles == {"admin", "reader"}


def test_data_and_configuration_lead_to_the_file(path: Path, tmp_path: Path):
    assert run_program(["user", "add", "alice", "--data", str(path.parent)]) == 0
    (tmp_path / "broker.yaml").write_text("security: {users-file: people}\n")
    config = ["--config", str(tmp_path / "broker.yaml")]
    assert run_program(["user", "add", "bob", *config]) == 0
    assert set(read_users(path)) == {"alice"}
    assert set(read_users(path.parent / "people")) == {"bob"}


def test_a_second_one_of_the_same_name_is_refused(path: Path, capsys):
    user(path, "add", "alice")
    before = path.read_text()
    assert user(path, "add", "alice") == 1
    assert "vespiary user password alice" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_password_changes_and_roles_stay(path: Path, tmp_path: Path):
    user(path, "add", "alice", "--role", "admin")
    fresh = tmp_path / "fresh"
    fresh.write_text("new word\r\nsecond line\n")
    assert user(path, "password", "alice", "--password-file", str(fresh)) == 0
    alice = read_users(path)["alice"]
    assert alice.is_password("new word")
    assert alice.roles == {"admin"}


def test_a_user_is_removed(path: Path, capsys):
    user(path, "add", "alice")
    user(path, "add", "bob")
    assert user(path, "remove", "alice") == 0
    assert set(read_users(path)) == {"bob"}
    assert user(path, "remove", "alice") == 1
    assert "bob" in capsys.readouterr().err


def test_roles_change_and_the_password_stays(path: Path, capsys):
    user(path, "add", "alice", "--role", "admin")
    before = read_users(path)["alice"]
    assert user(path, "roles", "alice", "--role", "shops", "--role", "packers") == 0
    assert "packers, shops" in capsys.readouterr().out
    alice = read_users(path)["alice"]
    assert alice.roles == {"shops", "packers"}
    assert (alice.salt, alice.stored_key) == (before.salt, before.stored_key)
    assert user(path, "roles", "alice") == 0
    assert "no roles" in capsys.readouterr().out
    assert read_users(path)["alice"].roles == frozenset()
    assert user(path, "roles", "nobody", "--role", "x") == 1
    assert user(path, "roles", "alice", "--role", "a b") == 1
    assert "the role may not be one" in capsys.readouterr().err


def test_what_it_means_that_there_are_no_users(path: Path, tmp_path: Path, capsys):
    config = tmp_path / "broker.yaml"

    def meaning(text: str = "{}") -> str:
        config.write_text(text)
        place = ["--config", str(config), "--data", str(path.parent)]
        assert run_program(["user", "list", *place]) == 0
        return str(capsys.readouterr().out)

    assert "clients of this machine need no login" in meaning()
    assert "(it listens beyond loopback)" in meaning("admin: {host: 0.0.0.0}")
    assert "(it has security-settings)" in meaning("security-settings: {'#': {send: [apps]}}")
    assert "have the role anonymous" in meaning("security: {allow-anonymous: true}")
    (path.parent / "users-existed").touch()
    assert "nobody can log in until you add one (it has had a users file)" in meaning()


def test_no_user_has_the_name_of_clients_without_a_login(path: Path, capsys):
    assert user(path, "add", "anonymous", "--role", "admin") == 1
    assert "clients without a login have it" in capsys.readouterr().err
    assert not path.exists()


def test_users_are_listed(path: Path, capsys):
    assert user(path, "list") == 0
    assert "no users" in capsys.readouterr().out
    user(path, "add", "alice", "--role", "admin")
    user(path, "add", "bob")
    capsys.readouterr()
    assert user(path, "list", "--json") == 0
    assert capsys.readouterr().out == (
        '[{"name":"alice","roles":["admin"]},{"name":"bob","roles":[]}]\n'
    )
    assert user(path, "list") == 0
    assert capsys.readouterr().out.split() == ["user", "roles", "alice", "admin", "bob"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "#x", "x" * 201])
def test_names_that_may_not_be_ones(path: Path, name: str):
    assert user(path, "add", "--", name) in (1, 2)
    assert not path.exists()


def test_without_a_password_nothing_is_made(path: Path, monkeypatch, capsys):
    monkeypatch.delenv("VESPIARY_PASSWORD")
    assert user(path, "add", "alice") == 1
    assert "VESPIARY_PASSWORD" in capsys.readouterr().err
    assert not path.exists()


def test_an_empty_password_file_is_refused(path: Path, tmp_path: Path, capsys):
    (tmp_path / "empty").write_text("\nsecret\n")
    assert user(path, "add", "alice", "--password-file", str(tmp_path / "empty")) == 1
    assert "is empty" in capsys.readouterr().err


def test_a_damaged_file_is_not_overwritten(path: Path, capsys):
    path.write_text("alice nonsense\n")
    assert user(path, "add", "bob") == 1
    assert f"{path}:1" in capsys.readouterr().err
    assert path.read_text() == "alice nonsense\n"


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch):
    add_user(path, "alice", "a-secret")
    before = path.read_text()

    def fail(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(user_changes.os, "fsync", fail)
    assert user(path, "add", "bob") == 1
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == ["users"]


def test_the_mode_of_the_file_stays(path: Path):
    add_user(path, "alice", "a-secret")
    path.chmod(0o640)
    set_password(path, "alice", "another one")
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_password_of_nobody_cannot_be_changed(path: Path):
    with pytest.raises(ConfigError, match="no user of this name"):
        set_password(path, "alice", "a-secret")


def test_short_passwords_are_refused_unless_they_are_wanted(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("VESPIARY_PASSWORD", "seven77")
    assert user(path, "add", "alice") == 1
    assert "too short (got 7 characters, allowed: 8 or more)" in capsys.readouterr().err
    assert not path.exists()
    assert user(path, "add", "alice", "--allow-short-password") == 0
    before = path.read_text()
    assert user(path, "password", "alice") == 1
    assert "--allow-short-password" in capsys.readouterr().err
    assert path.read_text() == before
    assert user(path, "password", "alice", "--allow-short-password") == 0
    assert "seven77" not in path.read_text()


def test_new_hashes_take_600_000_rounds(path: Path):
    user(path, "add", "alice")
    assert "alice SCRAM-SHA-256$600000:" in path.read_text()
