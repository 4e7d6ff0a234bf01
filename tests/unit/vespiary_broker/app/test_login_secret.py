import logging
from pathlib import Path

import pytest

from vespiary_broker.app.login_secret import LoginSecret
from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.users import make_user


def test_it_stays_over_a_restart_and_belongs_to_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "login-secret"
    first = LoginSecret(path)()
    assert len(first) == 32
    assert LoginSecret(path)() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert LoginSecret(tmp_path / "other")() != first
    assert sorted(each.name for each in tmp_path.iterdir()) == ["login-secret", "other"]


def test_a_spoilt_one_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "login-secret"
    path.write_bytes(b"short")
    assert len(LoginSecret(path)()) == 32


def test_without_a_folder_it_is_mentioned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = LoginSecret(tmp_path / "none" / "login-secret")
    with caplog.at_level(logging.WARNING):
        assert secret() == secret() == b""
    assert caplog.text.count("no login secret") == 1


def test_the_salt_of_nobody_stays_when_other_users_change(tmp_path: Path) -> None:
    users = {"alice": make_user("alice", "x", iterations=4096)}
    logins = Logins(lambda: dict(users), secret=LoginSecret(tmp_path / "login-secret"))
    salt = logins.find("nobody")[0].salt
    users["bob"] = make_user("bob", "x", iterations=4096)
    users["alice"] = make_user("alice", "y", iterations=4096)
    assert logins.find("nobody")[0].salt == salt
    assert logins.find("nobody2")[0].salt != salt


def test_nobody_gets_a_stronger_hash_with_another_salt_as_users_do(tmp_path: Path) -> None:
    users = {f"u{n}": make_user(f"u{n}", "x", iterations=4096) for n in range(10)}
    logins = Logins(lambda: dict(users), secret=LoginSecret(tmp_path / "login-secret"))
    strangers = [f"nobody{n}" for n in range(50)]
    before = [logins.find(name)[0] for name in strangers]
    for name in sorted(users, key=lambda name: int(name[1:]) % 2):
        users[name] = make_user(name, "x", iterations=5000)
        users[f"new-{name}"] = make_user("new", "x", iterations=5000)
        now = [logins.find(stranger)[0] for stranger in strangers]
        for old, new in zip(before, now, strict=True):
            assert new.iterations >= old.iterations
            assert (new.salt == old.salt) == (new.iterations == old.iterations)
        before = now
    assert {each.iterations for each in before} == {5000}
