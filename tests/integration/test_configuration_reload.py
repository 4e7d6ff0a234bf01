"""Changes of the configuration, users and certificates that a running broker takes."""

from __future__ import annotations

import hashlib
import json
import signal
import ssl
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml

from vespiary_broker.engine.users import format_users, make_user
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.changes import parts
from vespiary_spec.configuration import dump, from_broker
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_testkit.broker_calls import call, metrics, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for


class Reloaded(BrokerProcess):
    """A broker with a configuration file that a test changes."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.file = folder / "broker.yaml"
        self.write(**settings)
        super().__init__(folder / "data", configuration=self.file)

    def write(self, **settings: Any) -> None:
        """Write the file; names with `_` for `-`."""
        self.settings_now = {name.replace("_", "-"): value for name, value in settings.items()}
        new = self.file.with_suffix(".new")
        new.write_text(yaml.safe_dump(self.settings_now))
        new.replace(self.file)  # the broker never sees half of it

    def shown(self) -> Any:
        return call(self, "GET", "/configuration")

    def reload(self) -> Any:
        return call(self, "POST", "/configuration/reload")

    def refusal(self) -> str:
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.reload()
        assert caught.value.code == 409
        return str(json.load(caught.value)["detail"])


def said(frame: Frame) -> str:
    """Return all that an ERROR frame says."""
    return f"{frame.get('message', '')} {frame.body.decode()}"


def queue_names(broker: BrokerProcess) -> set[str]:
    return {item["name"] for item in call(broker, "GET", "/queues")["items"]}


def test_address_settings_hold_for_clients_that_are_connected(tmp_path: Path):
    with (
        Reloaded(tmp_path, address_settings={"#": {"auto-create-queues": True}}) as broker,
        StompPeer(broker.port()) as peer,
    ):
        peer.connect()
        peer.send("SEND", {"destination": "/queue/orders", "receipt": "1"}, b"x")
        peer.receive_receipt("1")
        digest = broker.shown()["files"][0]["digest"]
        broker.write(
            address_settings={"#": {"max-size-messages": 1, "address-full-policy": "FAIL"}}
        )
        found = broker.reload()
        assert found["files"][0]["digest"] != digest
        assert (found["refused"], found["waitsForRestart"]) == ("", [])
        assert found["taken"] >= 1, "once more if the broker has looked by itself before"
        # The same connection, to which the destination is known already.
        peer.send("SEND", {"destination": "/queue/orders", "receipt": "2"}, b"y")
        assert "address-full-policy is FAIL" in said(peer.receive_error())


@pytest.mark.ci
def test_waiting_producers_go_on_when_a_limit_is_raised(tmp_path: Path):
    blocked = {"#": {"max-size-messages": 1, "address-full-policy": "BLOCK"}}
    with (
        Reloaded(tmp_path, address_settings=blocked) as broker,
        StompPeer(broker.port()) as peer,
    ):
        peer.connect()
        peer.send("SEND", {"destination": "/queue/orders", "receipt": "1"}, b"x")
        peer.receive_receipt("1")
        peer.send("SEND", {"destination": "/queue/orders", "receipt": "2"}, b"y")
        wait_for(lambda: metrics(broker)["vespiary_blocked_producers"] == 1)
        assert call(broker, "GET", "/queues/orders")["messages"] == 1
        peer.check_silent()
        broker.write(address_settings={"#": {"max-size-messages": 10}})
        broker.reload()
        peer.receive_receipt("2")
        assert call(broker, "GET", "/queues/orders")["messages"] == 2
        assert metrics(broker)["vespiary_blocked_producers"] == 0


@pytest.mark.ci
def test_an_address_pages_or_pages_no_more(tmp_path: Path):
    count, body = 300, b"x" * 2000
    small = {"max-size-bytes": "100KiB", "page-size-bytes": "64KiB"}

    def policy(name: str) -> dict[str, Any]:
        return {"orders": {**small, "address-full-policy": name}}

    with (
        Reloaded(tmp_path, address_settings=policy("BLOCK")) as broker,
        StompPeer(broker.port()) as peer,
    ):
        peer.connect()

        def send(number: int) -> None:
            headers = {"destination": "/queue/orders", "n": str(number), "persistent": "true"}
            peer.send("SEND", {**headers, "receipt": str(number)}, body)

        for number in range(count):
            send(number)
        broker.write(address_settings=policy("PAGE"))
        broker.reload()
        peer.receive_receipt(str(count - 1))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 3)
        broker.write(address_settings={"orders": {"address-full-policy": "BLOCK"}})
        broker.reload()
        for number in range(count, count + 10):
            send(number)
            peer.receive_receipt(str(number))
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
        found = peer.receive_messages(count + 10)
        assert [int(message.get("n") or -1) for message in found] == list(range(count + 10))
        wait_for(lambda: call(broker, "GET", "/queues/orders")["messages"] == 0)


@pytest.mark.ci
def test_addresses_and_diverts_come_and_what_goes_is_kept_or_deleted(tmp_path: Path):
    orders = {"name": "orders", "queues": [{"name": "orders"}]}
    copies = {"name": "copies", "queues": [{"name": "copies", "max-consumers": 2}]}
    divert = {"name": "d", "address": "orders", "forwarding-address": "copies"}
    with Reloaded(tmp_path, addresses=[orders]) as broker:
        broker.write(addresses=[orders, copies], diverts=[divert])
        assert broker.reload()["kept"] == []
        assert queue_names(broker) == {"orders", "copies"}
        assert call(broker, "GET", "/queues/copies")["maxConsumers"] == 2
        assert [d["name"] for d in call(broker, "GET", "/diverts")["items"]] == ["d"]
        broker.write(addresses=[copies])
        assert broker.reload()["kept"] == ["address orders", "queue orders", "divert d"]
        assert queue_names(broker) == {"orders", "copies"}
        forced = {"config-delete-queues": "FORCE", "config-delete-diverts": "FORCE"}
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "receipt": "s"})
            peer.receive_receipt("s")
            broker.write(addresses=[copies], address_settings={"#": forced})
            assert broker.reload()["kept"] == ["address orders"]
            assert "the queue orders is not configured any more" in said(peer.receive_error())
        assert queue_names(broker) == {"copies"}
        assert call(broker, "GET", "/diverts")["items"] == []


@pytest.mark.ci
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"addresses": [{"name": "a", "colour": "red"}]}, "colour"),
        ({"journal_directory": "elsewhere"}, "journal-directory"),
        (
            {
                "addresses": [
                    {"name": "new"},
                    {"name": "orders", "queues": [{"name": "q", "routing-type": "MULTICAST"}]},
                ]
            },
            "the queue q exists with another routing type",
        ),
        (
            {
                "addresses": [{"name": "new"}],
                "diverts": [
                    {"name": "one", "address": "a", "forwarding-address": "b"},
                    {"name": "two", "address": "b", "forwarding-address": "a"},
                ],
            },
            "lead back",
        ),
        (
            {"address_settings": {"orders": {"default-last-value-queue": True}}},
            "under whom lastValue cannot change",
        ),
    ],
)
def test_a_wrong_file_changes_nothing(tmp_path: Path, settings: dict[str, Any], said: str):
    orders = {"addresses": [{"name": "orders", "queues": [{"name": "q"}]}]}
    with Reloaded(tmp_path, **orders) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders::q", "receipt": "s"})
        peer.receive_receipt("s")
        digest = broker.shown()["files"][0]["digest"]
        broker.write(**{**orders, **settings, "log_level": "debug"})
        assert said in broker.refusal()
        found = broker.shown()
        assert said in found["refused"]
        assert (found["files"][0]["digest"], found["taken"]) == (digest, 0)
        assert found["failed"] >= 1, "once more for each time that the broker has looked by itself"
        assert {item["name"] for item in call(broker, "GET", "/addresses")["items"]} == {"orders"}
        assert call(broker, "GET", "/diverts")["items"] == []
        assert "level=debug" not in broker.log_text()
        assert "configuration not taken" in broker.log_text()
        assert metrics(broker)["vespiary_configuration_refused"] == 1
        assert said in run_command(broker, "configuration", "reload", code=1)
        broker.write(**orders, log_level="debug")
        broker.reload()
        assert metrics(broker)["vespiary_configuration_refused"] == 0


@pytest.mark.ci
def test_what_needs_a_restart_is_said_and_waits(tmp_path: Path):
    with Reloaded(tmp_path, journal_min_files=2) as broker:
        broker.write(journal_min_files=3, max_disk_usage=100, max_queues=7)
        found = broker.reload()
        assert found["waitsForRestart"] == ["journal-min-files"]
        assert metrics(broker)["vespiary_configuration_waits_for_restart"] == 1
        said = run_command(broker, "configuration", "show")
        assert "waits for restart  journal-min-files" in said
        broker.stop()
        broker.start()
        assert broker.shown()["waitsForRestart"] == []


@pytest.mark.ci
def test_a_changed_file_and_sighup_are_noticed(tmp_path: Path):
    with Reloaded(tmp_path) as broker:
        broker.write(addresses=[{"name": "a", "queues": [{"name": "by-file"}]}])
        wait_for(lambda: "by-file" in queue_names(broker))
        wait_for(lambda: broker.shown()["taken"] == 1)  # counted when all of it holds
        broker.write(addresses=[{"name": "a", "queues": [{"name": "by-signal"}]}])
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "by-signal" in queue_names(broker))


@pytest.mark.ci
def test_duplicate_ids_counters_and_limits(tmp_path: Path):
    with Reloaded(tmp_path) as broker, StompPeer(broker.port()) as peer:
        peer.connect()

        def send(receipt: str) -> None:
            headers = {"destination": "/queue/a", "_AMQ_DUPL_ID": "same", "receipt": receipt}
            peer.send("SEND", headers, b"x")
            peer.receive_receipt(receipt)

        send("1")
        send("2")
        assert call(broker, "GET", "/queues/a")["messages"] == 1
        broker.write(
            address_settings={"a": {"id-cache-size": 0}},
            message_counter_enabled=True,
            message_counter_sample_period=1000,
            max_queues=1,
        )
        broker.reload()
        send("3")
        assert call(broker, "GET", "/queues/a")["messages"] == 2
        wait_for(lambda: call(broker, "GET", "/queues/a/message-counter")["added"] == 2)
        said = run_command(broker, "queue", "create", "b", code=1)
        assert "at most 1 (max-queues)" in said


@pytest.mark.ci
def test_files_as_a_kubelet_swaps_them(tmp_path: Path):
    """The two files that the operator makes of a Broker; a mounted folder changes by its link."""
    mount = tmp_path / "live"
    mount.mkdir()

    def bring(version: str, spec: dict[str, Any]) -> str:
        document = {"apiVersion": API_VERSION, "kind": "Broker", "metadata": {"name": "orders"}}
        texts = parts(from_broker(Broker.from_dict({**document, "spec": spec})))
        (mount / version).mkdir()
        (mount / version / "live.yaml").write_text(dump(texts[1]))
        (mount / "new").symlink_to(version)
        (mount / "new").rename(mount / "..data")
        return hashlib.sha256(dump(texts[1]).encode()).hexdigest()

    first = bring("v1", {})
    (mount / "live.yaml").symlink_to("..data/live.yaml")
    fixed = tmp_path / "broker.yaml"
    fixed.write_text("journal-min-files: 3\n")
    with BrokerProcess(tmp_path / "data", configuration=fixed, live=mount / "live.yaml") as broker:

        def digest() -> str:
            files = call(broker, "GET", "/configuration")["files"]
            return str({each["path"]: each["digest"] for each in files}[str(mount / "live.yaml")])

        assert digest() == first
        second = bring("v2", {"addresses": [{"name": "a", "queues": [{"name": "q"}]}]})
        wait_for(lambda: digest() == second)
        assert queue_names(broker) == {"q"}
        (mount / "v3").mkdir()
        (mount / "v3" / "live.yaml").write_text("journal-min-files: 4\n")
        (mount / "new").symlink_to("v3")
        (mount / "new").rename(mount / "..data")
        wait_for(lambda: "needs a restart" in call(broker, "GET", "/configuration")["refused"])
        assert digest() == second


@pytest.mark.ci
def test_settings_of_its_own_win_and_go_again(tmp_path: Path):
    """The file that a broker alone has: it comes, changes and goes while the broker runs."""
    common, own = tmp_path / "broker.yaml", tmp_path / "broker-1.yaml"
    common.write_text("journal-min-files: 3\nmax-queues: 10\n")

    def said(broker: BrokerProcess) -> tuple[list[str], bool, str]:
        found = call(broker, "GET", "/configuration")
        digests = {each["path"]: each["digest"] for each in found["files"]}
        return found["waitsForRestart"], bool(digests[str(own)]), found["refused"]

    with BrokerProcess(tmp_path / "data", configuration=common, own=own) as broker:
        assert said(broker) == ([], False, "")
        own.write_text("max-queues: 1\n")
        wait_for(lambda: said(broker) == ([], True, ""))
        run_command(broker, "queue", "create", "a")
        assert "max-queues" in run_command(broker, "queue", "create", "b", code=1)
        own.write_text("journal-min-files: 4\n")
        wait_for(lambda: said(broker) == (["journal-min-files"], True, ""))
        run_command(broker, "queue", "create", "b")
        own.write_text("journal-min-files: none\n")
        wait_for(lambda: "journal-min-files" in said(broker)[2])
        own.unlink()
        wait_for(lambda: said(broker) == ([], False, ""))


# --- users --------------------------------------------------------------------------------------


def test_changed_users_hold_at_once(tmp_path: Path):
    users = tmp_path / "data" / "users"
    users.parent.mkdir()

    def write(**passwords: str) -> None:
        made = [make_user(name, text, iterations=4096) for name, text in passwords.items()]
        users.write_text(format_users(made))
        users.chmod(0o600)

    def answer(login: str, passcode: str) -> str:
        with StompPeer(broker.port()) as peer:
            peer.send("CONNECT", {"accept-version": "1.2", "login": login, "passcode": passcode})
            return peer.receive().command

    write(root="one", guest="g")
    with BrokerProcess(tmp_path / "data") as broker:
        assert answer("root", "one") == "CONNECTED"
        assert answer("guest", "g") == "CONNECTED"
        write(root="two")
        assert answer("root", "one") == "ERROR"
        assert answer("root", "two") == "CONNECTED"
        assert answer("guest", "g") == "ERROR"


# --- TLS ----------------------------------------------------------------------------------------


def shown_to(port: int, context: ssl.SSLContext) -> str:
    """Return the name in the certificate that a new connection is shown."""
    with StompPeer(port, tls=context) as peer:
        peer.connect()
        assert isinstance(peer.socket, ssl.SSLSocket)
        found: Any = peer.socket.getpeercert()
        subject = found["subject"]
        return str(dict(pair[0] for pair in subject)["commonName"])


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.mark.ci
def test_new_connections_get_the_new_certificate_and_old_ones_live_on(
    tmp_path: Path, authority: Authority
):
    folder, ca = tmp_path / "tls", tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    authority.sign("one.example", days=90).write(folder)
    client = ssl.create_default_context(cafile=str(ca))
    settings = [
        f"acceptors.stomp.tls.certificate={folder / 'tls.crt'}",
        f"acceptors.stomp.tls.key={folder / 'tls.key'}",
    ]
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        port = broker.port("stomp")
        with StompPeer(port, tls=client) as old:
            old.connect()
            assert shown_to(port, client) == "one.example"
            second = authority.sign("two.example", days=5)
            second.write(folder)
            wait_for(lambda: shown_to(port, client) == "two.example")
            old.send("SEND", {"destination": "/queue/a", "receipt": "r"}, b"x")
            old.receive_receipt("r")
        found = call(broker, "GET", "/configuration")["certificates"]
        assert [(each["acceptor"], each["fingerprint"]) for each in found] == [
            ("stomp", second.fingerprint)
        ]
        left = metrics(broker)['vespiary_certificate_expires_in_seconds{acceptor="stomp"}']
        assert 4.9 * 86400 < left < 5.1 * 86400
        assert "certificate ends soon" in broker.log_text()
        # A key that does not fit: the one before stays, and that is said.
        (folder / "tls.key").write_bytes(authority.sign("three.example").key)
        wait_for(lambda: metrics(broker)["vespiary_configuration_refused"] == 1)
        assert shown_to(port, client) == "two.example"
        found = call(broker, "GET", "/configuration")["certificates"]
        assert "do not belong together" in found[0]["refused"]
        assert "certificate not taken" in broker.log_text()
        authority.sign("four.example").write(folder)
        wait_for(lambda: metrics(broker)["vespiary_configuration_refused"] == 0)
        assert shown_to(port, client) == "four.example"


def test_an_authority_that_is_taken_away_lets_nobody_in_any_more(tmp_path: Path):
    first, second = Authority("first"), Authority("second")
    folder = tmp_path / "tls"
    first.sign("one.example").write(folder)
    (folder / "ca.crt").write_bytes(first.certificate)
    first.sign("client.example").write(tmp_path / "client")
    client = ssl.create_default_context(cadata=first.certificate.decode())
    client.load_cert_chain(tmp_path / "client" / "tls.crt", tmp_path / "client" / "tls.key")
    settings = [
        f"acceptors.stomp.tls.{name}={folder / file}"
        for name, file in (
            ("certificate", "tls.crt"),
            ("key", "tls.key"),
            ("client-ca", "ca.crt"),
        )
    ]
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        port = broker.port("stomp")
        assert shown_to(port, client) == "one.example"
        (folder / "ca.crt").write_bytes(second.certificate)
        call(broker, "POST", "/configuration/reload")
        with pytest.raises((OSError, AssertionError)):
            shown_to(port, client)
        (folder / "ca.crt").write_bytes(first.certificate + second.certificate)
        call(broker, "POST", "/configuration/reload")
        assert shown_to(port, client) == "one.example"
