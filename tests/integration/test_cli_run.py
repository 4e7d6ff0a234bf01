"""`vespiary run` as a user meets it: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import stomp

from vespiary_testkit.broker_process import BrokerProcess

PROGRAM = [sys.executable, "-m", "vespiary_broker"]
TIMEOUT_S = 60


def vespiary(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environment,
    )


def refused(*arguments: object) -> str:
    """Run something that is refused; return the sentence."""
    done = vespiary(*arguments)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def url(broker: BrokerProcess) -> str:
    return f"stomp://127.0.0.1:{broker.port()}"


def api(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.port('http')}"


def test_events_are_json_objects_one_a_line(broker: BrokerProcess):
    *listeners, ready = broker.events
    assert [event["name"] for event in listeners] == ["all", "amqp", "mqtt", "stomp", "http"]
    for event in listeners:
        assert set(event) == {"event", "name", "protocols", "host", "port"}
        assert event["event"] == "listening"
        assert event["host"] == "127.0.0.1"
        socket.create_connection((event["host"], event["port"])).close()
    assert set(ready) == {"event", "seconds", "engine", "durability", "data"}
    assert ready["durability"] == "D2"
    assert ready["data"] == str(broker.data)


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_people_get_lines_and_a_signal_ends_it_cleanly(tmp_path: Path, number: int):
    command = [*PROGRAM, "run", "--data", str(tmp_path / "data"), "--port", "0"]
    command += ["--set", "max-disk-usage=100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        lines = [p.stdout.readline() for _ in range(7)]
        assert [line.split()[0] for line in lines] == ["listening"] * 5 + ["ready", "try"]
        p.send_signal(number)
        out, err = p.communicate(timeout=TIMEOUT_S)
        assert p.returncode == 0
        assert out == ""
        assert "Traceback" not in err


def test_a_stock_client_sends_and_receives(broker: BrokerProcess):
    class Listener(stomp.ConnectionListener):
        def __init__(self) -> None:
            self.bodies: list[str] = []
            self.receipts: list[str] = []

        def on_message(self, frame: stomp.utils.Frame) -> None:
            self.bodies.append(frame.body)

        def on_receipt(self, frame: stomp.utils.Frame) -> None:
            self.receipts.append(frame.headers["receipt-id"])

    listener = Listener()
    connection = stomp.Connection12([("127.0.0.1", broker.port())])
    connection.set_listener("", listener)
    connection.connect(wait=True)
    connection.subscribe("/queue/stock", "1")
    connection.send("/queue/stock", "hello", persistent="true", receipt="r")
    end_s = time.monotonic() + TIMEOUT_S
    while not (listener.bodies and listener.receipts) and time.monotonic() < end_s:
        time.sleep(0.01)
    connection.disconnect()
    assert listener.bodies == ["hello"]
    assert "r" in listener.receipts


def test_send_and_receive_from_the_shell(broker: BrokerProcess):
    done = vespiary("send", "shell", "hello", "--header", "colour=red", "--url", url(broker))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 message to shell: confirmed")
    done = vespiary("receive", "shell", "--json", "--url", url(broker))
    message = json.loads(done.stdout)
    assert (message["body"], message["headers"]["colour"]) == ("hello", "red")
    done = vespiary("receive", "shell", "--timeout", "0.1", "--url", url(broker))
    assert done.returncode == 1


def test_receive_takes_no_more_than_it_was_asked_for(broker: BrokerProcess):
    vespiary("send", "counted", "x", "-n", "300", "--url", url(broker))
    assert vespiary("receive", "counted", "-n", "120", "--url", url(broker)).stdout == "x\n" * 120
    shown = vespiary("queue", "show", "counted", "--json", "--api", api(broker))
    state = json.loads(shown.stdout)
    assert (state["messages"], state["acknowledged"], state["redelivered"]) == (180, 120, 0)


@pytest.mark.ci
def test_a_folder_in_use_names_its_owner(broker: BrokerProcess):
    sentence = refused("run", "--data", broker.data, "--port", "0")
    assert f"process id {broker.pid}" in sentence
    assert "VSP-J105" in sentence


@pytest.mark.ci
def test_a_port_in_use_is_named(broker: BrokerProcess, tmp_path: Path):
    config = tmp_path / "broker.yaml"
    config.write_text("acceptors: [{name: all, port: 0}]\nadmin: {port: 0}\n")
    sentence = refused("run", "-c", config, "--port", broker.port())
    assert f"127.0.0.1:{broker.port()}" in sentence


def test_a_taken_http_port_is_named(broker: BrokerProcess, tmp_path: Path):
    config = tmp_path / "broker.yaml"
    config.write_text(
        f"acceptors: [{{name: all, port: 0}}]\nadmin: {{port: {broker.port('http')}}}\n"
    )
    sentence = refused("run", "-c", config)
    assert "admin.port: cannot listen on" in sentence
    assert "--set admin.port=N" in sentence


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("jurnal-type=NIO", "Did you mean `journal-type`"),
        ("journal-type=FAST", "allowed: ASYNCIO, NIO"),
        ("journal-min-files=1", "2 to 10000"),
        ("journal-file-size=5000", "multiple of 4Ki"),
        ("journal-file-size=ten", "journal-file-size"),
        ("ha-policy=x", "ha-policy"),
        ("novalue", "NAME=VALUE"),
    ],
)
def test_a_wrong_setting_starts_nothing(tmp_path: Path, setting: str, says: str):
    data = tmp_path / "data"
    assert says in refused("run", "--data", data, "--port", "0", "--set", setting)
    assert not data.exists()


def test_beyond_loopback_it_needs_users(tmp_path: Path):
    arguments = ["run", "--data", tmp_path, "--host", "0.0.0.0", "--port", "0"]
    sentence = refused(*arguments)
    assert "vespiary user add" in sentence
    assert not (tmp_path / "journal").exists() or not list((tmp_path / "journal").glob("*.hq"))


def test_a_second_broker_takes_one_option(tmp_path: Path):
    offset = free_offset()
    command = [*PROGRAM, "run", "--data", str(tmp_path), "--port-offset", str(offset)]
    command += ["--set", "max-disk-usage=100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    ports = [61616, 5672, 1883, 61613, 8161]
    for line, port in zip(lines, ports, strict=False):
        assert f"127.0.0.1:{port + offset} " in line
    assert f"--url stomp://127.0.0.1:{61616 + offset}" in lines[-1]


def free_offset() -> int:
    """Return an offset at which nothing listens on any port of the default configuration."""
    for offset in range(37, 3900, 37):
        ports = [port + offset for port in (61616, 5672, 1883, 61613, 8161)]
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return offset
    raise AssertionError("no offset is free")


def test_a_start_that_is_rejected_late_says_one_thing(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = vespiary("run", "--data", tmp_path, "--port", port, "--set", "admin.port=0")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]
    assert "RuntimeWarning" not in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_is_an_object_too_for_scripts(tmp_path: Path):
    done = vespiary("run", "--json", "--data", tmp_path, "--port", "0", "--set", "nope=1")
    assert done.returncode == 1
    event = json.loads(done.stdout)
    assert (event["event"], event["code"]) == ("error", "VSP-C102")


@pytest.mark.ci
def test_create_and_run_go_together(tmp_path: Path):
    done = vespiary(
        "create", tmp_path / "orders", "--user", "root", VESPIARY_PASSWORD="secret-of-root"
    )
    assert done.returncode == 0, done.stderr
    command = [*PROGRAM, "run", "-c", str(tmp_path / "orders/broker.yaml"), "--port", "0", "--json"]
    command += ["--set", "max-disk-usage=100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(6)]
        try:
            assert events[-1]["data"] == str(tmp_path / "orders/data")
            port = events[0]["port"]
            place = f"stomp://root@127.0.0.1:{port}"
            assert vespiary("send", "q", "x", "--url", f"stomp://127.0.0.1:{port}").returncode == 1
            wrong = vespiary("send", "q", "x", "--url", place, VESPIARY_PASSWORD="wrong")
            assert "user name or password are wrong" in wrong.stderr
            good = vespiary("send", "q", "x", "--url", place, VESPIARY_PASSWORD="secret-of-root")
            assert good.returncode == 0
            admin = f"http://root@127.0.0.1:{events[-2]['port']}"
            shown = vespiary(
                "queue", "list", "--json", "--api", admin, VESPIARY_PASSWORD="secret-of-root"
            )
            assert json.loads(shown.stdout)[0]["messages"] == 1
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0


@pytest.mark.ci
def test_users_change_while_it_runs(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        assert vespiary("send", "q", "x", "--url", url(broker)).returncode == 0
        added = vespiary("user", "add", "bob", "--data", broker.data, VESPIARY_PASSWORD="pw-of-bob")
        assert added.returncode == 0
        assert "needs a login" in vespiary("send", "q", "x", "--url", url(broker)).stderr
        place = url(broker).replace("//", "//bob@")
        assert (
            vespiary("send", "q", "x", "--url", place, VESPIARY_PASSWORD="pw-of-bob").returncode
            == 0
        )
        removed = vespiary("user", "remove", "bob", "--data", broker.data)
        assert "nobody can log in until you add one" in removed.stderr
        assert "nobody can log in" in vespiary("send", "q", "x", "--url", url(broker)).stderr
