"""Nothing of a password is in any log, whatever the client sends and whatever fails."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.users import make_user
from vespiary_testkit.journal_workload import run
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.server_rig import ServerRig

SECRET = "Zx9-Qw7-Kp3"
PIECE = "Qw7"
CONNECT = (
    f"CONNECT\npasscode:{SECRET}\nlogin:alice\n"
    "accept-version:1.2\nhost:x\nheart-beat:0,0\nclient-id:c\n\n\0"
).encode()
USERS = {"alice": make_user("alice", SECRET, iterations=4096)}


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@run
async def test_spoilt_connect_frames(caplog: pytest.LogCaptureFixture) -> None:
    """Each byte taken out, and replaced by what frames are made of."""
    rig = MqttRig(users=USERS)
    caplog.set_level(logging.DEBUG)
    answers = b""
    for place in range(len(CONNECT)):
        for instead in (b"", b"\n", b":", b"\0", b"\xff", b"\\"):
            peer = rig.peer()
            peer.send(CONNECT[:place] + instead + CONNECT[place + 1 :])
            await rig.settle(3)
            answers += peer.transport.data
    while rig.tasks:
        await rig.settle()
    assert caplog.records, "refused clients are logged"
    assert PIECE not in caplog.text
    assert PIECE.encode() not in answers
    await rig.close()


@run
async def test_logins_that_fail_by_a_defect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    for method in ("begin", "finish"):
        with monkeypatch.context() as patched:
            patched.setattr(Logins, method, broken)
            rig = ServerRig(users=USERS)
            peer = rig.peer()
            peer.send(CONNECT)
            while not peer.transport.data:
                await rig.settle()
            assert b"failed to handle" in peer.transport.data
            await rig.close()
    assert "a defect" in caplog.text
    assert "frame failed" in caplog.text
    assert PIECE not in caplog.text
