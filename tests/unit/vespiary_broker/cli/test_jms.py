"""`vespiary jms` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.admin_rig import AdminRig, MemoryBroker, admin_rig, queue_state


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    with admin_rig(MemoryBroker()) as rig:
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program(["jms", *arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def test_objects_are_made_listed_and_deleted(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "create", "orders", "--jndi", "jms/orders", "--jndi", "o") == 0
    assert capsys.readouterr().out == "queue orders, jms/orders, o\n"
    assert ask(rig, "topic", "create", "prices") == 0
    assert capsys.readouterr().out == "topic prices, no JNDI name\n"
    assert ask(rig, "factory", "create", "main", "--url", "amqp://b:5672", "--jndi", "cf") == 0
    assert ask(rig, "names") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cf", "connection-factory", "main"] in lines
    assert ["jms/orders", "queue", "orders"] in lines
    assert ask(rig, "queue", "list") == 0
    assert "jms/orders, o" in capsys.readouterr().out
    assert ask(rig, "factory", "list", "--json") == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert (item["url"], item["jndiNames"]) == ("amqp://b:5672", ["cf"])
    assert ask(rig, "unbind", "o") == 0
    assert ask(rig, "unbind", "o") == 1
    assert "There is no JNDI name 'o'" in capsys.readouterr().err
    assert ask(rig, "factory", "delete", "main", "--yes") == 0
    assert ask(rig, "topic", "delete", "prices", "--yes") == 0
    assert set(rig.broker.jms.objects.jndi_names()) == {"jms/orders"}


def test_a_queue_with_messages_needs_force(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "create", "orders") == 0
    rig.broker.queue_states["orders"] = queue_state("orders", messages=4, ready=4)
    assert ask(rig, "queue", "delete", "orders", "--yes") == 1
    assert "in use" in capsys.readouterr().err
    assert ask(rig, "queue", "delete", "orders", "--yes", "--force") == 0
    assert "deleted with 4 messages" in capsys.readouterr().out


def test_a_factory_needs_a_url_that_clients_know(rig: AdminRig, capsys):
    assert ask(rig, "factory", "create", "main") == 2
    assert ask(rig, "factory", "create", "main", "--url", "http://b") == 1
    assert "amqp" in capsys.readouterr().err


READER = """
import java.io.FileReader;
import java.util.Properties;
import java.util.TreeMap;

public class Reader {
    public static void main(String[] arguments) throws Exception {
        Properties found = new Properties();
        found.load(new FileReader(arguments[0]));
        for (var entry : new TreeMap<>(found).entrySet()) {
            System.out.println(entry.getKey() + "\\t" + entry.getValue());
        }
    }
}
"""


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK to read the file")
def test_java_reads_the_properties_as_they_were_given(rig: AdminRig, tmp_path: Path, capsys):
    strange = "a b:c=d#e!f\\g"
    assert ask(rig, "queue", "create", "orders", "--jndi", strange, "--jndi", "jms/orders") == 0
    url = "failover:(amqp://a:5672,amqp://b:5672)?x=1"
    assert ask(rig, "factory", "create", "main", "--url", url, "--jndi", "cf") == 0
    capsys.readouterr()
    assert ask(rig, "properties") == 0
    (tmp_path / "jndi.properties").write_text(capsys.readouterr().out)
    (tmp_path / "Reader.java").write_text(READER)
    command = ["java", str(tmp_path / "Reader.java"), str(tmp_path / "jndi.properties")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert dict(line.split("\t") for line in lines) == {
        "java.naming.factory.initial": "org.apache.qpid.jms.jndi.JmsInitialContextFactory",
        f"queue.{strange}": "orders",
        "queue.jms/orders": "orders",
        "connectionfactory.cf": url,
    }
