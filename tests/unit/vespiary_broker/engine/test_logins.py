import pytest

from vespiary_broker.engine.logins import (
    FAILURES_FREE,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    WINDOW_S,
    Check,
    Logins,
    Principal,
    guest,
)
from vespiary_broker.engine.users import User, make_user
from vespiary_spec.errors import LoginRefused

USERS = {name: make_user(name, "right", iterations=4096, roles=["r"]) for name in ("alice", "bob")}


class Counted:
    """Logins whose checks are made at once and counted."""

    def __init__(self, users: dict[str, User], *, closed_reason: str = "") -> None:
        self.logins = Logins(lambda: users, closed_reason=lambda: closed_reason)
        self.checks = 0

    def __call__(
        self, name: str | None, password: str | None, peer: str = "p", now_s: float = 0.0
    ) -> Principal:
        outcome = self.logins.begin(name, password, peer, now_s)
        if isinstance(outcome, Principal):
            return outcome
        self.checks += 1
        return self.logins.finish(outcome, is_good=outcome.is_good(), now_s=now_s)

    def fail(self, name: str, peer: str = "p", now_s: float = 0.0) -> str:
        # The result is given, so that hundreds of failures cost no hashing.
        try:
            outcome = self.logins.begin(name, "wrong", peer, now_s)
            assert isinstance(outcome, Check)
            self.logins.finish(outcome, is_good=False, now_s=now_s)
        except LoginRefused as refusal:
            return str(refusal)
        raise AssertionError


def test_good_login() -> None:
    assert Counted(USERS)("alice", "right") == Principal("alice", frozenset({"r"}))


def test_one_sentence_for_wrong_names_and_wrong_passwords() -> None:
    login = Counted(USERS)
    sentences = set()
    for name in ("alice", "nobody"):
        with pytest.raises(LoginRefused) as refused:
            login(name, "wrong")
        sentences.add(str(refused.value))
    assert len(sentences) == 1
    assert login.checks == 2  # the hash was computed for the unknown user too


def test_good_password_is_hashed_once() -> None:
    login = Counted(USERS)
    for _ in range(3):
        login("alice", "right")
    assert login.checks == 1
    with pytest.raises(LoginRefused):
        login("alice", "right ")
    assert login.checks == 2


def test_changed_password_counts_at_once() -> None:
    users = dict(USERS)
    login = Counted(users)
    login("alice", "right")
    users["alice"] = make_user("alice", "new", iterations=4096)
    with pytest.raises(LoginRefused):
        login("alice", "right")
    login("alice", "new")


def test_anonymous() -> None:
    assert Counted({})(None, None).name == "anonymous"
    assert Counted({})("whoever", "whatever").name == "anonymous"
    with pytest.raises(LoginRefused, match="no users, and it listens beyond loopback"):
        Counted({}, closed_reason="it listens beyond loopback")(None, None)
    with pytest.raises(LoginRefused, match="needs a login"):
        Counted(USERS)(None, None)
    with pytest.raises(LoginRefused, match="needs a login"):
        Counted(USERS)("alice", "")


def test_anonymous_clients_beside_users() -> None:
    login = Counted(USERS)
    login.logins = Logins(lambda: USERS, anonymous=guest())
    assert login.logins.is_login_optional
    assert not login.logins.is_open
    assert login(None, None) == login("", "") == guest()
    assert login("alice", "right").name == "alice"
    for name, password in (("alice", ""), (None, "right"), ("nobody", "right"), ("alice", "wrong")):
        with pytest.raises(LoginRefused):
            login(name, password)


def test_lockout_says_why() -> None:
    assert not Logins(dict).lockout
    assert not Logins(lambda: USERS, closed_reason=lambda: "so it is").lockout
    closed = Logins(dict, closed_reason=lambda: "it has had a users file")
    assert closed.lockout == (
        "nobody can log in: this broker has no users, and it has had a users file"
    )
    for reason in ("so it is", ""):
        guests = Logins(dict, closed_reason=lambda reason=reason: reason, anonymous=guest())
        assert not guests.lockout
        assert not guests.is_open
        assert guests.without_login() == guest(), "on a new broker too they are no administrators"
    with pytest.raises(LoginRefused, match="there are no users to log in as"):
        guests.begin("alice", "x", "p", 0.0)


def test_failures_delay_the_right_password_and_reject_it_never() -> None:
    login = Counted(USERS)
    login("alice", "right", "10.0.0.1")
    for _ in range(FAILURES_FREE):
        assert login.logins.pause_s("alice", "10.0.0.1", 0.0) == 0
        assert "wrong" in login.fail("alice", "10.0.0.1")
    pauses = []
    for _ in range(8):
        pauses.append(login.logins.pause_s("alice", "10.0.0.1", 0.0))
        assert "wrong" in login.fail("alice", "10.0.0.1")
    assert pauses == [PAUSE_FIRST_S * 2**n for n in range(5)] + [PAUSE_MAX_S] * 3
    outcome = login.logins.begin("alice", "right", "10.0.0.1", 0.0)
    assert isinstance(outcome, Check), "also one that is remembered waits"
    assert login.logins.verdict(outcome) is True
    assert login("alice", "right", "10.0.0.1").name == "alice"
    assert login.logins.pause_s("alice", "10.0.0.1", WINDOW_S) == 0


def test_others_do_not_wait() -> None:
    login = Counted(USERS)
    for number in range(200):
        login.fail("alice", "10.0.0.1")
        login.fail(f"user-{number}", "10.0.0.1")
        login.fail("alice", f"10.1.0.{number}")
    assert login.logins.pause_s("alice", "10.0.0.1", 0.0) == PAUSE_MAX_S
    assert login.logins.pause_s("bob", "10.0.0.1", 0.0) == 0, "another user behind the address"
    assert login.logins.pause_s("alice", "10.0.0.2", 0.0) == 0, "the user from elsewhere"
    assert isinstance(login("alice", "right", "10.0.0.2"), Principal)
    assert isinstance(login.logins.begin("alice", "right", "10.0.0.2", 0.0), Principal)


def test_an_ipv6_network_counts_as_one() -> None:
    login = Counted(USERS)
    for number in range(FAILURES_FREE):
        login.fail("alice", f"2001:db8:0:1::{number}")
    assert login.logins.pause_s("alice", "2001:db8:0:1:ffff::1", 0.0) > 0
    assert login.logins.pause_s("alice", "2001:db8:0:2::1", 0.0) == 0


def test_logins_that_wait_make_others_of_their_pair_wait_longer() -> None:
    login = Counted(USERS)
    logins = login.logins
    for _ in range(FAILURES_FREE):
        login.fail("alice")
    with logins.pausing("alice", "p"), logins.pausing("alice", "p"):
        assert logins.pause_s("alice", "p", 0.0) == 4 * PAUSE_FIRST_S
    assert logins.pause_s("alice", "p", 0.0) == PAUSE_FIRST_S
    assert not logins._pausing


def test_a_success_forgives_no_failures_of_others() -> None:
    login = Counted(USERS)
    for _ in range(FAILURES_FREE):
        login.fail("alice")
    login("alice", "right")
    assert login.logins.pause_s("alice", "p", 0.0) == PAUSE_FIRST_S


def test_names_of_any_length_take_little_memory() -> None:
    login = Counted(USERS)
    login.fail("x" * 100_000)
    ((_, name),) = login.logins._by_pair._times  # type: ignore[misc]
    assert len(name) == 200


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vespiary_broker.engine.logins._TABLE_ENTRIES_MAX", 10)
    login = Counted(USERS)
    for number in range(100):
        login.fail(f"user-{number}", peer=f"peer-{number}")
    assert len(login.logins._by_pair._times) == 10
    assert len(login.logins._by_network._times) == 10


def test_passwords_are_not_shown() -> None:
    outcome = Counted(USERS).logins.begin("alice", "s3cret", "p", 0.0)
    assert "s3cret" not in repr(outcome)
