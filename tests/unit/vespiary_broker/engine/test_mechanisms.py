"""Each mechanism against a client's library, its bad input, and what an attacker may learn."""

from __future__ import annotations

import asyncio
import base64

import pytest
from scramp import ScramClient, ScramException, ScramMechanism

from vespiary_broker.engine.logins import FAILURES_FREE, Check, Logins, Principal, guest
from vespiary_broker.engine.mechanisms import (
    RESPONSE_BYTES_MAX,
    Challenge,
    Exchange,
    Mechanisms,
    Welcome,
)
from vespiary_broker.engine.users import User, make_user
from vespiary_broker.server.sasl import respond
from vespiary_spec.errors import LoginRefused
from vespiary_spec.settings import SaslMechanism
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import ServerRig

SCRAM = "SCRAM-SHA-256"
SECRET = "p4ss-w0rd"
ALICE = make_user("alice", SECRET, roles=("apps",), iterations=4096)
USERS = {"alice": ALICE, "bob": make_user("bob", "other", iterations=5000)}
WRONG = "user name or password are wrong"


class Broker:
    """Mechanisms with users that a test may change."""

    def __init__(self, users: dict[str, User] | None = None, *, is_open: bool = True) -> None:
        self.users = dict(USERS if users is None else users)
        self.logins = Logins(
            lambda: self.users, closed_reason=lambda: "" if is_open else "it is closed"
        )
        self.mechanisms = Mechanisms(self.logins)

    def begin(self, mechanism: str, peer: str = "p") -> Exchange:
        return self.mechanisms.begin(mechanism, peer)

    def scram(
        self, name: str, password: str, *, peer: str = "p", now_s: float = 0.0
    ) -> tuple[ScramClient, Welcome]:
        client = ScramClient([SCRAM], name, password)
        exchange = self.begin(SCRAM, peer)
        client.set_server_first(first(exchange, client, now_s))
        outcome = exchange.respond(client.get_client_final().encode(), now_s)
        assert isinstance(outcome, Welcome)
        return client, outcome

    def plain(self, data: bytes, now_s: float = 0.0) -> Principal:
        exchange = self.begin("PLAIN")
        outcome = exchange.respond(data, now_s)
        if isinstance(outcome, Check):
            outcome = exchange.checked(outcome, is_good=outcome.is_good(), now_s=now_s)
        assert isinstance(outcome, Welcome)
        return outcome.principal


def first(exchange: Exchange, client: ScramClient, now_s: float = 0.0) -> str:
    outcome = exchange.respond(client.get_client_first().encode(), now_s)
    assert isinstance(outcome, Challenge)
    return outcome.data.decode()


def parts(challenge: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in challenge.split(","))


# --- what is offered ------------------------------------------------------------------------------


def test_what_is_offered_follows_users_and_certificate() -> None:
    assert Broker().mechanisms.offered() == (SCRAM, "PLAIN")
    assert Broker().mechanisms.offered(has_certificate=True) == ("EXTERNAL", SCRAM, "PLAIN")
    assert Broker({}).mechanisms.offered() == ("PLAIN", "ANONYMOUS")
    assert Broker({}, is_open=False).mechanisms.offered() == (SCRAM, "PLAIN")
    logins = Broker().logins
    alone = Mechanisms(logins, (SaslMechanism.SCRAM_SHA_256,))
    assert alone.offered(has_certificate=True) == (SCRAM,)
    with pytest.raises(LoginRefused, match=r"'PLAIN' is not offered here.*SCRAM-SHA-256"):
        alone.begin("PLAIN", "p")


def test_anonymous_beside_users() -> None:
    mechanisms = Mechanisms(Logins(lambda: USERS, anonymous=guest()))
    assert mechanisms.offered() == (SCRAM, "PLAIN", "ANONYMOUS")
    assert mechanisms.begin("ANONYMOUS", "p").respond(b"", 0.0) == Welcome(guest())


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS", "", "plain", "GSSAPI", "x" * 9999])
def test_what_was_not_offered_is_refused(mechanism: str) -> None:
    broker = Broker()
    with pytest.raises(LoginRefused, match="not offered") as caught:
        broker.begin(mechanism)
    assert len(str(caught.value)) < 300
    assert broker.logins.refused == 1


# --- SCRAM ----------------------------------------------------------------------------------------


def test_a_good_proof_lets_in_and_proves_the_server() -> None:
    client, welcome = Broker().scram("alice", SECRET)
    assert welcome.principal == Principal("alice", frozenset({"apps"}))
    client.set_server_final(welcome.data.decode())  # raises if the signature is wrong


def test_without_a_first_message_the_client_is_asked_for_it() -> None:
    exchange = Broker().begin(SCRAM)
    assert exchange.respond(None, 0.0) == Challenge(b"")
    client = ScramClient([SCRAM], "alice", SECRET)
    client.set_server_first(first(exchange, client))
    assert isinstance(exchange.respond(client.get_client_final().encode(), 0.0), Welcome)


def test_a_server_that_knows_no_keys_is_found_out() -> None:
    client, welcome = Broker().scram("alice", SECRET)
    forged = base64.b64encode(bytes(32)).decode()
    with pytest.raises(ScramException):
        client.set_server_final(f"v={forged}")
    assert welcome.data != f"v={forged}".encode()


def test_unknown_users_look_like_known_ones() -> None:
    sentences = set()
    for name in ("alice", "nobody"):
        with pytest.raises(LoginRefused) as caught:
            Broker().scram(name, "wrong")
        sentences.add(str(caught.value))
    assert len(sentences) == 1
    challenges = {
        name: parts(first(Broker().begin(SCRAM), ScramClient([SCRAM], name, "x")))
        for name in ("alice", "bob", *(f"nobody{n}" for n in range(40)))
    }
    lengths = {len(base64.b64decode(found["s"])) for found in challenges.values()}
    assert lengths == {len(ALICE.salt)}
    rounds = {found["i"] for name, found in challenges.items() if name.startswith("nobody")}
    assert rounds == {"4096", "5000"}, "the rounds are those of users that there are"
    assert len({found["s"] for found in challenges.values()}) == len(challenges)


def test_the_salt_of_nobody_stays_over_a_restart_and_follows_from_nothing_public() -> None:
    def salt(broker: Broker) -> str:
        return parts(first(broker.begin(SCRAM), ScramClient([SCRAM], "nobody", "x")))["s"]

    assert salt(Broker()) == salt(Broker())
    broker = Broker()
    assert salt(broker) == salt(broker)
    others = {**USERS, "bob": make_user("bob", "other", iterations=5000)}
    assert salt(Broker(others)) != salt(Broker())


def test_the_servers_part_of_the_nonce_is_new_each_time() -> None:
    broker = Broker()
    nonces = {
        parts(
            broker.begin(SCRAM).respond(client.get_client_first().encode(), 0.0).data.decode()  # type: ignore[union-attr]
        )["r"]
        for client in (ScramClient([SCRAM], "alice", SECRET, c_nonce="same") for _ in range(5))
    }
    assert len(nonces) == 5
    assert all(nonce.startswith("same") and len(nonce) > 20 for nonce in nonces)


def test_a_proof_serves_once() -> None:
    broker = Broker()
    client = ScramClient([SCRAM], "alice", SECRET)
    exchange = broker.begin(SCRAM)
    client.set_server_first(first(exchange, client))
    final = client.get_client_final().encode()
    assert isinstance(exchange.respond(final, 0.0), Welcome)
    again = broker.begin(SCRAM)
    first(again, ScramClient([SCRAM], "alice", SECRET))
    with pytest.raises(LoginRefused, match=WRONG):
        again.respond(final, 0.0)


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_guesses_are_slowed_down_and_the_right_password_is_taken(name: str) -> None:
    broker = Broker()
    for _ in range(FAILURES_FREE):
        with pytest.raises(LoginRefused, match=WRONG):
            broker.scram(name, "guess")
    exchange = broker.begin(SCRAM)
    assert exchange.guess is None, "the challenge does not wait"
    first(exchange, ScramClient([SCRAM], name, "x"))
    assert exchange.guess == (name, "p")
    assert broker.logins.pause_s(*exchange.guess, 0.0) > 0
    assert broker.scram("alice", SECRET)
    assert broker.plain(b"\0alice\0" + SECRET.encode())


def test_a_user_that_changes_meanwhile() -> None:
    for change, is_let_in in (
        (None, False),
        (make_user("alice", SECRET, iterations=4096), False),
        (User("alice", ALICE.salt, 4096, ALICE.stored_key, ALICE.server_key), True),
    ):
        broker = Broker()
        client = ScramClient([SCRAM], "alice", SECRET)
        exchange = broker.begin(SCRAM)
        client.set_server_first(first(exchange, client))
        del broker.users["alice"]
        if change is not None:
            broker.users["alice"] = change
        final = client.get_client_final().encode()
        if is_let_in:
            outcome = exchange.respond(final, 0.0)
            assert isinstance(outcome, Welcome)
            assert outcome.principal.roles == frozenset(), "as it is now"
        else:
            with pytest.raises(LoginRefused, match=WRONG):
                exchange.respond(final, 0.0)


BAD_FIRST = [
    b"",
    b"n",
    b"n,,",
    b"n,,n=alice",
    b"n,,r=abc,n=alice",
    b"n,,n=,r=abc",
    b"n,,n=alice,r=",
    b"n,,n=al=ice,r=abc",
    b"n,,n=alice,r=a\0c",
    b"n,a=root,n=alice,r=abc",
    b"p=tls-unique,,n=alice,r=abc",
    b"p=tls-exporter,,n=alice,r=abc",
    b"x,,n=alice,r=abc",
    b"n,,m=ext,n=alice,r=abc",
    b"n,,n=alice,n=bob,r=abc",
    b"\xff\xfe,,n=alice,r=abc",
    b"n,,n=\xed\xa0\x80,r=abc",
    b"n,,n=" + b"a" * RESPONSE_BYTES_MAX + b",r=abc",
    b"," * RESPONSE_BYTES_MAX,
    b"n,,n=\xe2\x80\xaealice,r=abc",
]


@pytest.mark.parametrize("message", BAD_FIRST)
def test_first_messages_that_are_none_are_refused(message: bytes) -> None:
    broker = Broker()
    with pytest.raises(LoginRefused) as caught:
        broker.begin(SCRAM).respond(message, 0.0)
    assert len(str(caught.value)) < 400
    assert broker.logins.refused == 1


@pytest.mark.parametrize("cut", range(0, 100, 7))
def test_last_messages_that_are_none_are_failures(cut: int) -> None:
    broker = Broker()
    client = ScramClient([SCRAM], "alice", SECRET)
    exchange = broker.begin(SCRAM)
    client.set_server_first(first(exchange, client))
    final = client.get_client_final().encode()
    for bad in (final[:cut], final[cut + 1 :], final + b",x=1", b"c=biws,r=wrong,p=" + b"A" * 43):
        other = broker.begin(SCRAM, peer=f"{cut}")
        first(other, ScramClient([SCRAM], "alice", SECRET))
        with pytest.raises(LoginRefused):
            other.respond(bad, 0.0)


def test_a_last_message_that_is_too_long_is_refused() -> None:
    exchange = Broker().begin(SCRAM)
    first(exchange, ScramClient([SCRAM], "alice", SECRET))
    with pytest.raises(LoginRefused, match="at most 4096"):
        exchange.respond(b"c=biws," + b"x" * 5000, 0.0)


def test_without_users_there_is_nothing_to_prove() -> None:
    with pytest.raises(LoginRefused, match="not offered"):
        Broker({}).begin(SCRAM)
    with pytest.raises(LoginRefused, match="this broker has no users"):
        Broker({}, is_open=False).scram("alice", SECRET)


# --- PLAIN, EXTERNAL, ANONYMOUS -------------------------------------------------------------------


def test_plain() -> None:
    broker = Broker()
    for data in (b"\0alice\0", b"alice\0alice\0"):
        assert broker.plain(data + SECRET.encode()).name == "alice"
    assert broker.begin("PLAIN").respond(None, 0.0) == Challenge(b"")
    assert Broker({}).plain(b"\0anybody\0x").is_anonymous


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "three parts"),
        (b"\0alice", "three parts"),
        (b"\0alice\0pass\0more", "three parts"),
        (b"root\0alice\0" + SECRET.encode(), "act as somebody else"),
        (b"\0alice\0" + SECRET.encode() + b"\xff\xfe", "three parts of UTF-8"),
        (b"\0alice\0wrong", WRONG),
        (b"\0nobody\0wrong", WRONG),
        (b"\0\0x", "needs a login"),
        (b"\0alice\0", "needs a login"),
        (b"\0alice\0" + b"x" * RESPONSE_BYTES_MAX, "at most 4096"),
    ],
)
def test_plain_that_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(LoginRefused, match=words) as caught:
        Broker().plain(data)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)


def test_external_is_who_the_certificate_says() -> None:
    alice = Principal("alice", frozenset({"apps"}))
    mechanisms = Broker().mechanisms
    exchange = mechanisms.begin("EXTERNAL", "p", lambda: alice)
    assert exchange.respond(None, 0.0) == Challenge(b"")
    for said in (b"", b"alice"):
        assert exchange.respond(said, 0.0) == Welcome(alice)
    with pytest.raises(LoginRefused, match="act as somebody else"):
        exchange.respond(b"root", 0.0)

    def nobody() -> Principal:
        raise LoginRefused("the certificate is nobody's")

    with pytest.raises(LoginRefused, match="nobody's"):
        mechanisms.begin("EXTERNAL", "p", nobody).respond(b"", 0.0)


def test_anonymous() -> None:
    broker = Broker({})
    exchange = broker.begin("ANONYMOUS")
    for said in (None, b"", b"somebody@example.org"):
        outcome = exchange.respond(said, 0.0)
        assert isinstance(outcome, Welcome)
        assert outcome.principal.is_anonymous
        assert outcome.principal.name == "anonymous"
    broker.users.update(USERS)
    with pytest.raises(LoginRefused, match="needs a login"):
        exchange.respond(b"", 0.0)


def here() -> bool:
    return True


@pytest.mark.parametrize("mechanism", [SCRAM, "PLAIN"])
def test_what_was_guessed_too_often_waits(mechanism: str) -> None:
    async def scenario() -> None:
        rig = ServerRig(users=USERS)
        mechanisms, loop = Mechanisms(rig.engine.logins), asyncio.get_running_loop()
        for _ in range(FAILURES_FREE + 2):
            rig.engine.logins.failed("alice", "p", loop.time())
        exchange, client = mechanisms.begin(mechanism, "p"), ScramClient([SCRAM], "alice", SECRET)
        last = b"\0alice\0" + SECRET.encode()
        begun_s = loop.time()
        if mechanism == SCRAM:
            told = await respond(rig.cycle, exchange, client.get_client_first().encode(), here)
            client.set_server_first(told.data.decode())
            last = client.get_client_final().encode()
        assert isinstance(await respond(rig.cycle, exchange, last, here), Welcome)
        assert loop.time() - begun_s >= 1.0
        await rig.close()

    product_loop.run(scenario())


# --- away from the loop ---------------------------------------------------------------------------


def test_hashing_is_done_away_from_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        rig = ServerRig(users=USERS)
        mechanisms = Mechanisms(rig.engine.logins)
        threads: list[bool] = []
        known = User.is_password

        def is_password(user: User, password: str) -> bool:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                threads.append(True)
            return known(user, password)

        monkeypatch.setattr(User, "is_password", is_password)
        outcome = await respond(
            rig.cycle, mechanisms.begin("PLAIN", "p"), b"\0alice\0" + SECRET.encode(), here
        )
        assert isinstance(outcome, Welcome)
        with pytest.raises(LoginRefused, match=WRONG):
            await respond(rig.cycle, mechanisms.begin("PLAIN", "p"), b"\0alice\0wrong", here)
        assert threads == [True, True]
        client = ScramClient([SCRAM], "alice", SECRET)
        exchange = mechanisms.begin(SCRAM, "p")
        told = await respond(rig.cycle, exchange, client.get_client_first().encode(), here)
        client.set_server_first(told.data.decode())
        assert isinstance(
            await respond(rig.cycle, exchange, client.get_client_final().encode(), here), Welcome
        )
        assert threads == [True, True], "a proof costs the server no hashing"
        await rig.close()

    product_loop.run(scenario())


def test_the_users_file_fits_what_clients_of_scram_hash() -> None:
    keys = ScramMechanism(SCRAM).make_auth_info(SECRET, iteration_count=4096, salt=ALICE.salt)
    assert keys[1:3] == (ALICE.stored_key, ALICE.server_key)
