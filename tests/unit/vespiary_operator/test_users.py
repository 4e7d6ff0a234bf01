"""Passwords in, salted hashes out, and nothing changes that need not."""

from __future__ import annotations

import base64

import pytest

from vespiary_broker.engine.users import make_user, parse_users
from vespiary_operator import users
from vespiary_spec.errors import ConfigError
from vespiary_spec.security import Auth, AuthUser


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def test_the_broker_reads_the_file_and_knows_the_passwords() -> None:
    text = users.users_file({"admin": "s3cret-word", "alice": "pass-word"})
    found = parse_users(text, "users")
    assert found["admin"].is_password("s3cret-word")
    assert not found["admin"].is_password("pass-word")
    assert found["admin"].roles == {"admin"}
    assert found["alice"].roles == frozenset()
    assert "s3cret-word" not in text


def test_lines_that_fit_are_kept_and_others_are_made_anew() -> None:
    first = users.users_file({"a": "password-1", "b": "password-2"})
    assert users.users_file({"a": "password-1", "b": "password-2"}, first) == first
    second = users.users_file({"a": "password-1", "b": "password-x", "c": "password-3"}, first)
    assert second.splitlines()[0] == first.splitlines()[0]
    assert second.splitlines()[1] != first.splitlines()[1]
    assert parse_users(second, "users")["b"].is_password("password-x")
    assert users.users_file({"b": "password-2"}, first).splitlines() == [first.splitlines()[1]]


def test_roles_are_written_down_and_change_without_another_salt() -> None:
    passwords = {"admin": "s3cret-word", "alice": "pass-word", "bob": "pass-word"}
    named = Auth(users=(AuthUser(name="alice", roles=("ops", "apps")), AuthUser(name="bob")))
    first = users.users_file(passwords, roles=users.roles_of(named))
    found = parse_users(first, "users")
    assert found["admin"].roles == {"admin"}, "in any case"
    assert found["alice"].roles == {"apps", "ops"}
    assert found["bob"].roles == frozenset()
    second = users.users_file(passwords, first, users.roles_of(Auth()))
    again = parse_users(second, "users")
    assert again["alice"].roles == frozenset()
    assert again["alice"].salt == found["alice"].salt
    assert second.splitlines()[0] == first.splitlines()[0]
    more = users.roles_of(Auth(users=(AuthUser(name="admin", roles=("apps",)),)))
    assert parse_users(users.users_file(passwords, second, more), "users")["admin"].roles == {
        "admin",
        "apps",
    }


def test_roles_of_nobody_are_refused() -> None:
    roles = users.roles_of(Auth(users=(AuthUser(name="alcie", roles=("apps",)),)))
    with pytest.raises(ConfigError, match=r"spec.auth.users: .*no password.*alcie.*alice"):
        users.users_file({"alice": "pass-word"}, roles=roles)


def test_short_passwords_are_refused_unless_they_are_wanted_or_were_taken_before() -> None:
    with pytest.raises(ConfigError, match=r"`alice` is too short .*7 characters.*8 or more"):
        users.users_file({"alice": "seven77"})
    text = users.users_file({"alice": "seven77"}, is_short_allowed=True)
    assert users.users_file({"alice": "seven77"}, text) == text
    with pytest.raises(ConfigError, match="too short"):
        users.users_file({"alice": "other77"}, text)


def test_a_weak_hash_is_replaced() -> None:
    weak = make_user("alice", "seven77", roles=["apps"], iterations=15_000).to_line()
    text = users.users_file({"alice": "seven77"}, weak + "\n", {"alice": ("apps",)})
    (alice,) = parse_users(text, "users").values()
    assert alice.iterations == 600_000
    assert alice.is_password("seven77")
    assert alice.roles == {"apps"}


@pytest.mark.parametrize(
    "line",
    [
        "admin",
        "admin SCRAM-SHA-256$1:c2FsdA==$eA==:eA== admin",
        "admin SCRAM-SHA-256$99999999:c2FsdA==$eA==:eA== admin",
        "admin SCRAM-SHA-256$15000:!!$eA==:eA== admin",
        "admin SCRAM-SHA-256$15000:c2FsdA==$eA==:eA==",
    ],
)
def test_a_line_that_somebody_spoilt_is_made_anew(line: str) -> None:
    text = users.users_file({"admin": "pass-word"}, line + "\n")
    assert parse_users(text, "users")["admin"].is_password("pass-word")


def test_a_new_password_is_long_and_never_the_same() -> None:
    assert len({users.new_password() for _ in range(50)}) == 50
    assert len(users.new_password()) >= 32


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "names no user"),
        ({"a": encoded(b"")}, "is empty"),
        ({"a": encoded(b"\xff")}, "is no text"),
        ({"a": "!"}, "is no text"),
        ({"a b": encoded(b"x")}, "no user name"),
    ],
)
def test_bad_secrets_are_refused_without_their_content(data: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        users.decoded(data, "people")
    assert "Secret people" in str(caught.value)


def test_a_trailing_line_feed_is_no_part_of_a_password() -> None:
    assert users.decoded({"a": encoded(b"pw\n")}, "s") == {"a": "pw"}
