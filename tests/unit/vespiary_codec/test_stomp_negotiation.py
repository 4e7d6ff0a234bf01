"""Login: versions and heart-beats, from both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.wire.stomp import (
    Frame,
    HeartBeats,
    Login,
    Refusal,
    RemoteProtocolError,
    accept_connected,
    agree_heart_beats,
    connected_frame,
    encode,
    negotiate,
    parse_heart_beat,
)


def connect(**headers):
    return Frame("CONNECT", [(k.replace("_", "-"), v) for k, v in headers.items()])


@pytest.mark.parametrize(
    ("offered", "version"),
    [
        (None, "1.0"),
        ("1.0", "1.0"),
        ("1.1", "1.1"),
        ("1.2", "1.2"),
        ("1.0,1.1,1.2", "1.2"),
        ("1.2,1.1,1.0", "1.2"),
        ("1.0,1.1,2.0", "1.1"),
        (" 1.0 , 1.1 ", "1.1"),
        ("1.2,1.2", "1.2"),
    ],
)
def test_the_highest_common_version(offered, version):
    frame = connect() if offered is None else connect(accept_version=offered)
    login = negotiate(frame, HeartBeats())
    assert isinstance(login, Login)
    assert login.version == version


@pytest.mark.parametrize("offered", ["", "2.0", "1.3,3", "1,2", "1.2.0", "v1.2", "01.2"])
def test_no_common_version(offered):
    refusal = negotiate(connect(accept_version=offered), HeartBeats())
    assert isinstance(refusal, Refusal)
    assert "this broker speaks 1.0,1.1,1.2" in refusal.reason
    assert refusal.frame.get("version") == "1.0,1.1,1.2"
    assert refusal.frame.get("message") == refusal.reason
    assert refusal.frame.body == b"Supported protocol versions are 1.0 1.1 1.2"
    assert encode(refusal.frame, "1.0").startswith(b"ERROR\n")


def test_a_broker_that_speaks_less():
    login = negotiate(connect(accept_version="1.0,1.1,1.2"), HeartBeats(), ("1.0", "1.1"))
    assert isinstance(login, Login)
    assert login.version == "1.1"
    refusal = negotiate(connect(accept_version="1.0"), HeartBeats(), ("1.2",))
    assert isinstance(refusal, Refusal)
    assert refusal.frame.get("version") == "1.2"


def test_what_a_login_says():
    frame = connect(
        accept_version="1.2", host="h", login="u", passcode=" p ", client_id="c", heart_beat="5,6"
    )
    login = negotiate(frame, HeartBeats(7, 4))
    assert login == Login(
        version="1.2", login="u", passcode=" p ", host="h", client_id="c", send_ms=7, receive_ms=5
    )
    assert " p " not in repr(login)
    assert " p " not in str(login)


def test_a_login_that_says_nothing():
    login = negotiate(connect(), HeartBeats(1, 1))
    assert login == Login("1.0", None, None, None, None, 0, 0)


def test_blanks_are_dropped_if_the_version_is_1_0():
    login = negotiate(connect(login=" u", passcode="\tp "), HeartBeats())
    assert isinstance(login, Login)
    assert (login.login, login.passcode) == ("u", "p")


@pytest.mark.parametrize(
    ("ours", "theirs", "send_ms", "receive_ms"),
    [
        ((0, 0), (0, 0), 0, 0),
        ((10, 20), (0, 0), 0, 0),
        ((0, 0), (10, 20), 0, 0),
        ((10, 0), (0, 20), 20, 0),
        ((30, 0), (0, 20), 30, 0),
        ((0, 20), (10, 0), 0, 20),
        ((0, 20), (30, 0), 0, 30),
        ((10, 10), (10, 10), 10, 10),
        ((5, 7), (11, 3), 5, 11),
    ],
)
def test_heart_beat_arithmetic(ours, theirs, send_ms, receive_ms):
    frame = connect(accept_version="1.1", heart_beat=f"{theirs[0]},{theirs[1]}")
    login = negotiate(frame, HeartBeats(*ours))
    assert isinstance(login, Login)
    assert (login.send_ms, login.receive_ms) == (send_ms, receive_ms)


def test_1_0_has_no_heart_beats():
    login = negotiate(connect(heart_beat="nonsense"), HeartBeats(10, 10))
    assert isinstance(login, Login)
    assert (login.send_ms, login.receive_ms) == (0, 0)


MILLISECONDS = st.integers(0, 2**31 - 1)


@given(MILLISECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS)
def test_both_sides_agree(a, b, c, d):
    ours, theirs = HeartBeats(a, b), HeartBeats(c, d)
    send_ms, receive_ms = agree_heart_beats(ours, theirs)
    assert agree_heart_beats(theirs, ours) == (receive_ms, send_ms)
    assert parse_heart_beat(f"{a},{b}") == ours


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1",
        "1,",
        ",1",
        "1,2,3",
        "-1,0",
        "+1,0",
        "1 ,2",
        "1, 2",
        "1.5,0",
        "1000;1000",
        "2147483648,0",
        "0,99999999999999999999",
        "\u0661,0",
        "9" * 5000 + ",0",
    ],
)
def test_heart_beats_that_cannot_be_read(text):
    with pytest.raises(RemoteProtocolError, match="heart-beat is"):
        parse_heart_beat(text)
    refusal = negotiate(connect(accept_version="1.2", heart_beat=text), HeartBeats(1, 1))
    assert isinstance(refusal, Refusal)
    assert "2147483647" in refusal.reason
    assert refusal.frame.get("message") == refusal.reason


def test_the_clients_side():
    ours = HeartBeats(100, 50)
    answer = connected_frame("1.2", server="V", session="s", heart_beat=(70, 30))
    assert accept_connected(answer, ours) == ("1.2", 100, 70)
    assert accept_connected(Frame("CONNECTED", [("session", "1")]), ours) == ("1.0", 0, 0)
    assert accept_connected(Frame("CONNECTED", [("version", "1.1")]), ours) == ("1.1", 0, 0)


def test_a_server_that_chooses_what_was_not_offered():
    for version in ("1.1", "2.0", ""):
        with pytest.raises(RemoteProtocolError, match="the server chose version"):
            accept_connected(Frame("CONNECTED", [("version", version)]), HeartBeats(), ("1.2",))
