import logging
import os
from pathlib import Path

import pytest

from vespiary_broker.app.users_file import MARK_NAME, UsersFile
from vespiary_broker.engine.users import format_users, make_user
from vespiary_spec.errors import ConfigError


def _write(path: Path, *names: str) -> None:
    path.write_text(format_users([make_user(name, "x", iterations=4096) for name in names]))
    path.chmod(0o600)


def test_missing_file_means_no_users(tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users")
    assert file.read() == {}
    _write(tmp_path / "users", "alice")
    assert list(file.users()) == ["alice"]
    (tmp_path / "users").unlink()
    assert list(file.users()) == []


def test_a_users_file_is_remembered_beyond_its_end(tmp_path: Path) -> None:
    path, mark = tmp_path / "users", tmp_path / "data" / MARK_NAME
    assert not UsersFile(path, mark).have_existed
    _write(path, "alice")
    file = UsersFile(path, mark)
    file.read()
    assert file.have_existed
    assert mark.exists()
    path.unlink()
    later = UsersFile(path, mark)
    assert later.read() == {}
    assert later.have_existed
    mark.unlink()  # by hand: the broker is to be open again
    anew = UsersFile(path, mark)
    anew.read()
    assert not anew.have_existed


def test_a_mark_that_cannot_be_written_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write(tmp_path / "users", "alice")
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        file = UsersFile(tmp_path / "users", tmp_path / "file" / MARK_NAME)
        assert list(file.read()) == ["alice"]
    assert "the next start lets clients of this machine in" in caplog.text


def test_a_user_with_the_name_of_clients_without_a_login_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write(tmp_path / "users", "alice")
    text = (tmp_path / "users").read_text()
    with caplog.at_level(logging.WARNING):
        UsersFile(tmp_path / "users").read()
        assert not caplog.text
        (tmp_path / "users").write_text(text.replace("alice", "anonymous"))
        UsersFile(tmp_path / "users").read()
    assert "user=anonymous" in caplog.text


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "users"
    _write(path, "alice")
    file = UsersFile(path)
    first = file.read()
    assert file.users() is first
    _write(path, "alice", "bob")
    assert list(file.users()) == ["alice", "bob"]


def test_file_that_turns_bad_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users"
    _write(path, "alice")
    file = UsersFile(path)
    file.read()
    path.write_text("alice secret-password\n")
    with caplog.at_level(logging.ERROR):
        assert list(file.users()) == ["alice"]
        assert list(file.users()) == ["alice"]
    assert len(caplog.records) == 1  # told once
    assert "secret-password" not in caplog.text


def test_bad_file_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("alice secret\n")
    with pytest.raises(ConfigError, match=r"users:1"):
        UsersFile(path).read()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        UsersFile(path).read()


def test_what_is_no_file_ends_the_start_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        UsersFile(path).read()
    path.unlink()
    _write(tmp_path / "mounted", "alice")
    path.symlink_to("mounted")
    assert list(UsersFile(path).read()) == ["alice"], "Kubernetes mounts Secrets as links"


def test_file_open_to_everybody_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users"
    _write(path, "alice")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        UsersFile(path).read()
    assert "open to everybody" in caplog.text


def test_only_other_names_and_roles_are_a_change_for_what_is_open(tmp_path: Path) -> None:
    path = tmp_path / "users"
    changes: list[list[str]] = []

    def write(password: str, **roles: str) -> None:
        users = [
            make_user(name, password, roles=[role], iterations=4096) for name, role in roles.items()
        ]
        path.write_text(format_users(users))
        path.chmod(0o600)
        file.users()

    file = UsersFile(path)
    file.on_changed = lambda: changes.append(list(file.users()))
    write("x", alice="apps")
    before = file.users()["alice"]
    write("longer", alice="apps")
    assert file.users()["alice"] != before, "the new password counts"
    write("longer", alice="others")
    write("longer", alice="others", bob="apps")
    write("longer", bob="apps")
    assert changes == [["alice"], ["alice"], ["alice", "bob"], ["bob"]]
