import pytest

from vespiary_broker.engine.users import User, format_users, make_user, parse_users
from vespiary_spec.errors import ConfigError

# Made with PostgreSQL's algorithm by hand: RFC 7677 gives the keys for "pencil".
RFC_7677 = (
    "user SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
    "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)


def test_known_answer() -> None:
    user = parse_users(RFC_7677, "users")["user"]
    assert user.iterations == 4096
    assert user.is_password("pencil")
    assert not user.is_password("Pencil")


def test_round_trip() -> None:
    users = [
        make_user("alice", "pass wörd", roles=["admin", "monitor"], iterations=4096),
        make_user("bob", "x", iterations=4096),
    ]
    text = format_users(users)
    assert "pass" not in text
    assert parse_users(text, "users") == {user.name: user for user in users}
    assert users[0].is_password("pass wörd")
    assert users[0].roles == {"admin", "monitor"}


def test_same_password_has_different_hashes() -> None:
    first, second = (make_user("a", "same", iterations=4096) for _ in range(2))
    assert first.stored_key != second.stored_key


def test_password_with_forbidden_characters_is_wrong() -> None:
    assert not make_user("a", "x", iterations=4096).is_password("\0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("alice", "wrong number of columns"),
        ("alice secret", "verifier cannot be understood"),
        (f"{RFC_7677}\n{RFC_7677}", "users:2: the user stands there twice"),
        (RFC_7677.replace("4096", "1"), "iterations is out of range"),
        (RFC_7677.replace("W22Z", "!!!!"), "not base64"),
        (RFC_7677.replace("WG5d8oPm", ""), "not 32 bytes"),
        (RFC_7677.replace("user", "a:b"), "user name may not be one"),
    ],
)
def test_bad_file(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_users(text, "users")
    assert "WG5d8oPm" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "password", "roles"),
    [("a b", "x", []), ("", "x", []), ("a", "", []), ("a", "\0", []), ("a", "x", ["r,s"])],
)
def test_users_that_cannot_be_made(name: str, password: str, roles: list[str]) -> None:
    with pytest.raises(ConfigError):
        make_user(name, password, roles=roles, iterations=4096)


def test_comments_and_empty_lines() -> None:
    assert parse_users(f"# a comment\n\n{RFC_7677} admin # why\n", "u")["user"].roles == {"admin"}


def test_user_shows_no_secret_of_its_password() -> None:
    assert isinstance(parse_users(RFC_7677, "u")["user"], User)
