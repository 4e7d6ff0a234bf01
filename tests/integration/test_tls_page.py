"""docs/howto/tls.md does not lie: its settings are taken, and let in whom it says."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.once

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/tls.md").read_text("utf-8")


def acceptors(folder: Path) -> list[dict[str, Any]]:
    """Return the acceptors of the page's second and third example, with files of the folder."""
    found = []
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1:3]:
        text = re.sub(r"\b(\w+\.(?:crt|key))\b", rf"{folder}/\1", block)
        found += yaml.safe_load(text)["acceptors"]
    return [{**acceptor, "port": 0} for acceptor in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    for file, name in (("tls", "broker"), ("orders", "orders.example"), ("any", "any.example")):
        signed = authority.sign(name)
        (tmp_path / f"{file}.crt").write_bytes(signed.certificate)
        (tmp_path / f"{file}.key").write_bytes(signed.key)
    authority.sign("alice").write(tmp_path / "alice")
    authority.sign("press", subject="CN=press 7,OU=plant,O=Orders").write(tmp_path / "press")
    return tmp_path


@pytest.mark.ci
def test_the_examples(folder: Path) -> None:
    configuration = folder / "broker.yaml"
    configuration.write_text(yaml.safe_dump({"acceptors": acceptors(folder)}))
    data = folder / "data"
    data.mkdir(mode=0o700)
    users = [make_user(name, "secret", iterations=4096) for name in ("alice", "bob")]
    (data / "users").write_text(format_users(users))
    with BrokerProcess(data, configuration=configuration) as broker:
        for client in ("alice", "press"):
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            context.load_cert_chain(folder / client / "tls.crt", folder / client / "tls.key")
            with StompPeer(broker.port("all"), tls=context) as peer:
                peer.connect()
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        with StompPeer(broker.port("all"), tls=context) as peer:
            peer.connect(login="alice", passcode="secret")
        context.check_hostname = False
        for asked, subject in (
            ("orders.example", "orders.example"),
            ("else.example", "any.example"),
            ("elsewhere", "broker"),
        ):
            with (
                socket.create_connection(("127.0.0.1", broker.port("names")), WAIT_S) as raw,
                context.wrap_socket(raw, server_hostname=asked) as tls,
            ):
                shown = tls.getpeercert()
                assert shown is not None
                assert shown["subject"] == ((("commonName", subject),),)


def test_a_subject_is_written_as_openssl_does(folder: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (command,) = re.findall(r"`(openssl x509 .*?) -in client.crt`", PAGE)
    shown = subprocess.run(
        [*command.split(), "-in", str(folder / "press/tls.crt")],
        capture_output=True,
        text=True,
        check=True,
    )
    listed = acceptors(folder)[0]["tls"]["certificate-users"][0]["subject"]
    assert shown.stdout.strip() == f"subject={listed}"
