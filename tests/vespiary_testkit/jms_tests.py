"""The Java tests of tests/jms against real brokers: one Maven, and a result for each test.

A copy of the project is built outside the repository, so that nothing is left in it and runs do
not meet. `jakarta` has the sources; those that `javax` runs too are copied with the other name of
the package. A second broker, which the tests may kill and start again, is at their call by HTTP.
"""

from __future__ import annotations

import contextlib
import http.server
import random
import re
import shutil
import socket
import subprocess
import threading
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = ROOT / "tests/jms"
MODULES: Final = ("jakarta", "javax")
PAGE: Final = ROOT / "docs/howto/jms.md"
SOURCES: Final = Path("src/test/java/vespiary")
MAVEN_S: Final = 600.0
JAVAX_TESTS: Final = (
    "AcknowledgementTest", "ContextTest", "MessageTypesTest", "SubscriptionsTest",
    "TransactionsTest",
)  # fmt: skip
_HELPERS: Final = ("Admin", "Broker")
_TEST: Final = re.compile(r"@(?:Parameterized)?Test\b.*?\n    void (\w+)\(", re.DOTALL)
_ITERATIONS: Final = 4096
_ALL: Final = (
    "send", "consume", "browse", "create-address", "delete-address", "create-durable-queue",
    "delete-durable-queue", "create-non-durable-queue", "delete-non-durable-queue", "manage",
)  # fmt: skip
_CONFIGURATION: Final = {
    "max-disk-usage": 100,
    "security-settings": {"#": {name: ["apps"] for name in _ALL}},
    "address-settings": {
        "#": {"dead-letter-address": "dead", "expiry-address": "expired"},
        "jms.fixed.#": {"auto-create-addresses": False, "auto-create-queues": False},
        "jms.poisoned.#": {"max-delivery-attempts": 3},
        "jms.full.#": {"max-size-bytes": "200KiB", "address-full-policy": "FAIL"},
    },
}


class Result(NamedTuple):
    """How a Java test went.

    Attributes:
        time_s: How long it took.
        failure: What it says of its failure; empty if it passed.
        skipped: Why it was skipped; None if it was not.
    """

    time_s: float
    failure: str
    skipped: str | None


def missing_tool() -> str:
    """Return what is not there to run the tests; empty: nothing."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            return f"{tool} is not there. On Debian: apt-get install maven openjdk-17-jdk-headless"
    return ""


def java_tests() -> list[str]:
    """Return the tests that the sources have: `module.Class.method`."""
    found: list[str] = []
    for source in sorted((PROJECT / "jakarta" / SOURCES).glob("*Test.java")):
        methods = _TEST.findall(source.read_text())
        assert methods, f"{source} has no tests"
        found += [f"jakarta.{source.stem}.{method}" for method in methods]
        if source.stem in JAVAX_TESTS:
            found += [f"javax.{source.stem}.{method}" for method in methods]
    return found


def page_example(port: int) -> str:
    """Return the example of docs/howto/jms.md for a broker at another port than 5672."""
    (found,) = re.findall(r"```java\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found.count(":5672") == 1
    return str(found.replace(":5672", f":{port}"))


def run_java_tests(folder: Path, modules: list[str]) -> dict[str, Result]:
    """Run the Java tests of some modules; return how each went.

    Args:
        folder: An empty folder, for brokers and the build.
        modules: Of `MODULES`.
    """
    users = folder / "users"
    users.write_text(
        format_users(
            [
                make_user("alice", "secret", roles={"apps"}, iterations=_ITERATIONS),
                make_user("bob", "secret", roles={"apps", "admin"}),
                make_user("guest", "secret", iterations=_ITERATIONS),
            ]
        )
    )
    users.chmod(0o600)
    configuration = folder / "broker.yaml"
    configuration.write_text(yaml.safe_dump(_CONFIGURATION))
    settings = ("acceptors.all.protocols=AMQP", f"security.users-file={users}")
    stores = _make_stores(folder)
    tls = (
        f"acceptors.amqp.tls.certificate={stores / 'tls.crt'}",
        f"acceptors.amqp.tls.key={stores / 'tls.key'}",
        f"acceptors.amqp.tls.client-ca={stores / 'ca.crt'}",
        "acceptors.amqp.tls.want-client-auth=true",
    )
    killed_port = _free_port()
    killed = BrokerProcess(
        folder / "killed/data",
        *settings,
        configuration=configuration,
        ports={"all": killed_port},
    )
    killed.data.parent.mkdir()
    with (
        BrokerProcess(folder / "data", *settings, *tls, configuration=configuration) as broker,
        killed,
        _control(killed) as control_port,
    ):
        project = _copy(folder / "project", page_example(broker.port()))
        known = {
            "stores": stores,
            "port": broker.port(),
            "tls": broker.port("amqp"),
            "http": broker.port("http"),
            "killed": killed_port,
            "control": control_port,
        }
        properties = [f"-Dvespiary.{name}={value}" for name, value in known.items()]
        said = maven(project, "-pl", ",".join(modules), *properties, "test")
    results = _read_reports(project)
    assert results, f"Maven has run no tests:\n{said}"
    return results


def _make_stores(folder: Path) -> Path:
    """Make what TLS needs: PEM for the broker, and as PKCS12 what a client trusts and shows."""
    authority, stores = Authority(), folder / "stores"
    authority.sign("localhost").write(stores)
    (stores / "ca.crt").write_bytes(authority.certificate)
    shown = authority.sign("alice")
    (stores / "client.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"alice",
            load_pem_private_key(shown.key, None),  # type: ignore[arg-type]
            load_pem_x509_certificate(shown.certificate),
            None,
            BestAvailableEncryption(b"secret"),
        )
    )
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", "ca.crt"]
    command += ["-storetype", "PKCS12", "-keystore", "trusted.p12", "-storepass", "secret"]
    subprocess.run(command, cwd=stores, check=True, capture_output=True, timeout=MAVEN_S)
    return stores


def _free_port() -> int:
    """Return a port that nobody has, below those that the kernel gives out until it is bound."""
    while True:
        port = random.randint(20_000, 29_999)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _copy(project: Path, example: str) -> Path:
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("target"))
    (project / "jakarta" / SOURCES.parent / "Orders.java").write_text(example)
    javax = project / "javax" / SOURCES
    javax.mkdir(parents=True)
    for name in (*_HELPERS, *JAVAX_TESTS):
        source = (project / "jakarta" / SOURCES / f"{name}.java").read_text()
        (javax / f"{name}.java").write_text(source.replace("jakarta.jms", "javax.jms"))
    return project


@contextlib.contextmanager
def _control(broker: BrokerProcess) -> Iterator[int]:
    """Serve `POST /kill` and `POST /start`; yield the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            failure = b""
            try:
                {"/kill": broker.kill, "/start": broker.start}[self.path]()
            except Exception:  # the Java test says it
                failure = traceback.format_exc().encode()
            self.send_response(500 if failure else 200)
            self.send_header("Content-Length", str(len(failure)))
            self.send_header("Connection", "close")  # else Java sends its next request here
            self.end_headers()
            self.wfile.write(failure)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="control")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def maven(project: Path, *arguments: str) -> str:
    """Run Maven, with what it has fetched before if that is enough; return what it says."""
    said = ""
    for offline in (["-o"], []):
        done = subprocess.run(
            ["mvn", "-B", "-q", *offline, *arguments],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_S,
            check=False,
        )
        said = done.stdout
        if done.returncode == 0:
            return said
        if "offline mode" not in said:
            break
    raise AssertionError(f"Maven ended with {done.returncode}:\n{said[-20_000:]}")


def _read_reports(project: Path) -> dict[str, Result]:
    """Return results by test; those of a parameterized one are taken together."""
    results: dict[str, Result] = {}
    for report in sorted(project.glob("*/target/surefire-reports/TEST-*.xml")):
        module = report.relative_to(project).parts[0]
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            method = re.split(r"[^\w]", case.get("name", ""), maxsplit=1)[0]
            name = f"{module}.{case.get('classname', '').rpartition('.')[2]}.{method}"
            failures = [
                f"{case.get('name')}: {found.text or found.get('message')}"
                for found in case
                if found.tag in ("failure", "error")
            ]
            skipped = case.find("skipped")
            before = results.get(name, Result(0.0, "", None))
            results[name] = Result(
                before.time_s + float(case.get("time", 0)),
                "\n".join([*filter(None, [before.failure]), *failures]),
                None if skipped is None else skipped.get("message", ""),
            )
    return results
