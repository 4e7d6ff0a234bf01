"""`kubectl vespiary` against an API server in memory: what it says, exit codes, requests."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from vespiary_operator import names
from vespiary_operator.kubectl import explanation, redaction, reference
from vespiary_operator.kubectl.access import METADATA_ONLY, AccessError
from vespiary_operator.kubectl.program import program

PLANTED = "pl4nt3d"
BROKERS = "/apis/vespiary.dev/v1beta1/namespaces/ns/brokers"


class FakeApi:
    """Answers by path; writes down what was asked."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.namespace = "ns"
        self.documents = documents
        self.asked: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Any]] = []
        self.executed: list[tuple[str, str, list[str]]] = []

    def get(self, path: str, accept: str = "application/json", **query: str) -> bytes:
        self.asked.append((path, accept))
        if path.endswith("/secrets") and accept != METADATA_ONLY:
            raise AssertionError("secrets themselves are never asked for")
        if path not in self.documents:
            raise AccessError("the API server refused: not found", where=path, status=404)
        found = self.documents[path]
        return found if isinstance(found, bytes) else json.dumps(found).encode()

    def merge(self, path: str, body: Any, *, is_tried: bool = False) -> None:
        self.patches.append((path, body))

    def execute(self, pod: str, container: str, command: list[str]) -> tuple[int, str]:
        self.executed.append((pod, container, command))
        return 1, "journal is damaged\n"


def broker(
    *, ready: str = "True", reason: str = "Serving", extra: tuple[Any, ...] = (), **spec: Any
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "reason": reason, "message": "So it is."}]
    volume = {"name": "journal", "filesystem": "xfs", "verdict": "allow"}
    return {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns", "generation": 2, "resourceVersion": "7"},
        "spec": {"replicas": 1, **spec},
        "status": {
            "observedGeneration": 2,
            "readyReplicas": 1 if ready == "True" else 0,
            "version": "0.1.0",
            "conditions": [*conditions, *extra],
            "brokers": [{"name": "orders-0", "ordinal": 0, "ready": True, "volumes": [volume]}],
        },
    }


def run(api: FakeApi, *arguments: str) -> Result:
    return CliRunner().invoke(program, arguments, obj=lambda context, namespace: api)


def test_a_broker_that_is_ready_is_good() -> None:
    api = FakeApi({BROKERS: {"items": [broker()]}})
    done = run(api, "status")
    assert done.exit_code == 0, done.output
    assert "1/1" in done.output
    assert len(api.asked) == 1, "one request says it all"


def test_what_stands_in_the_way_is_named_with_the_next_command() -> None:
    refused = {
        "type": "StorageVerified",
        "status": "False",
        "reason": "VolumeRefused",
        "message": "The volume journal is on nfs4, which is refused.",
    }
    stuck = {"type": "Degraded", "status": "True", "reason": "BrokerStuck", "message": "Stuck."}
    one = broker(ready="False", reason="VolumeRefused", extra=(stuck, refused))
    api = FakeApi({f"{BROKERS}/orders": one})
    done = run(api, "status", "orders")
    assert done.exit_code == 1
    assert "The volume journal is on nfs4, which is refused." in done.output
    assert "next: kubectl vespiary -n ns verify orders" in done.output
    plain = json.loads(run(api, "status", "orders", "-o", "json").output)
    assert plain[0]["blockedBy"] == "StorageVerified"
    assert plain[0]["ready"] is False


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("Starting", "kubectl -n ns wait --for=condition=Ready broker/orders"),
        ("SecretUnusable", "kubectl -n ns get secrets"),
        ("InvalidSpec", "kubectl -n ns edit broker orders"),
        ("BrokerStuck", "kubectl -n ns describe broker orders"),
    ],
)
def test_each_reason_leads_somewhere(reason: str, command: str) -> None:
    found = explanation.explain(broker(ready="False", reason=reason))
    assert found.next.startswith(command)


def test_a_status_of_an_older_spec_is_not_ready() -> None:
    one = broker()
    one["metadata"]["generation"] = 3
    found = explanation.explain(one)
    assert not found.ready
    assert "yet to look" in found.sentence


def test_verify_is_bad_when_a_volume_is_refused_or_not_known() -> None:
    api = FakeApi({f"{BROKERS}/orders": broker()})
    assert run(api, "verify", "orders").exit_code == 0
    one = broker()
    volume = {"name": "journal", "verdict": "deny", "reason": "It is on nfs."}
    one["status"]["brokers"][0]["volumes"] = [volume]
    done = run(FakeApi({f"{BROKERS}/orders": one}), "verify", "orders", "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.output)[0]["sentence"] == "It is on nfs."
    one["status"]["brokers"] = []
    assert run(FakeApi({f"{BROKERS}/orders": one}), "verify", "orders").exit_code == 1


def test_the_journal_tool_runs_in_the_pod_and_its_exit_code_is_kept() -> None:
    pods = [{"metadata": {"name": f"orders-{number}"}} for number in (1, 0)]
    api = FakeApi({"/api/v1/namespaces/ns/pods": {"items": pods}})
    done = run(api, "journal", "orders", "verify", "--pod", "orders-1")
    assert (done.exit_code, done.output) == (1, "journal is damaged\n")
    command = ["vespiary", "journal", "verify", "/var/lib/vespiary/journal"]
    assert api.executed == [("orders-1", names.BROKER_CONTAINER, command)]
    assert run(api, "journal", "orders", "info", "--pod", "x").exit_code == 2
    assert run(api, "journal", "orders", "compact").exit_code == 2, "it only reads"


def test_drain_lowers_the_number_of_the_broker_that_was_read() -> None:
    api = FakeApi({f"{BROKERS}/orders": broker(replicas=3)})
    assert run(api, "drain", "orders", "--to", "1").exit_code == 0
    body = {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 1}}
    assert api.patches == [(f"{BROKERS}/orders", body)]
    assert run(api, "drain", "orders", "--to", "3").exit_code == 2
    alone = FakeApi({f"{BROKERS}/orders": broker()})
    assert run(alone, "drain", "orders").exit_code == 2
    assert alone.patches == []


def test_a_refusal_is_one_sentence() -> None:
    done = run(FakeApi({}), "status", "orders")
    assert done.exit_code == 1
    assert "not found" in done.output
    assert "Traceback" not in done.output


# --- the bundle -----------------------------------------------------------------------------------

SECRETS = {
    "a field": {"spec": {"password": PLANTED}},
    "a camel-cased field": {"spec": {"keyStorePassword": PLANTED}},
    "a variable": {"env": [{"name": "DB_PASSWORD", "value": PLANTED}]},
    "a token variable": {"env": [{"name": "API_TOKEN", "value": PLANTED}]},
    "an option": {"args": ["--admin-password", PLANTED]},
    "an option with its value": {"args": [f"--admin-password={PLANTED}"]},
    "the last applied object": {
        "metadata": {"annotations": {redaction.LAST_APPLIED: f'{{"data":{{"x":"{PLANTED}"}}}}'}}
    },
    "a Secret": {"kind": "Secret", "data": {"admin": PLANTED}, "stringData": {"b": PLANTED}},
    "a setting in a text": {"data": {"broker.yaml": f"store:\n  password: {PLANTED}\n"}},
    "a quoted setting": {"data": {"a.json": f'{{"passcode": "{PLANTED}"}}'}},
    "an address": {"data": {"uri": f"amqp://user:{PLANTED}@host:5672"}},
    "a private key": {
        "data": {"k": f"-----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----"}
    },
    "hashes": {"data": {"users": f"admin SCRAM-SHA-256$4096:{PLANTED}$a:b admin"}},
}
LINES = [
    f"connecting with password={PLANTED} to host",
    f"Authorization: Bearer {PLANTED}abcdef",
    f"Authorization: Basic {PLANTED}abcdef",
    f"CONNECT passcode:{PLANTED}",
    f"--token {PLANTED}",
    f"'api_key': '{PLANTED}'",
    f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}",
]


@pytest.mark.parametrize("place", SECRETS)
def test_no_secret_in_a_document_is_left(place: str) -> None:
    assert PLANTED not in json.dumps(redaction.document(SECRETS[place]))


@pytest.mark.parametrize("line", LINES)
def test_no_secret_in_a_line_is_left(line: str) -> None:
    assert PLANTED not in redaction.text(line)


def test_what_is_no_secret_is_left() -> None:
    kept = {
        "secretName": "orders-credentials",
        "automountServiceAccountToken": False,
        "message": "The Secret orders-users is made.",
        "host": "orders.ns.svc",
        "resourceVersion": "12",
    }
    assert redaction.document(kept) == kept
    line = "2026-01-01 Broker ns/orders: All brokers run with the current settings."
    assert redaction.text(line) == line


@pytest.mark.parametrize(
    ("probe", "place"),
    [
        ({"port": "http", "scheme": "HTTP"}, "orders-0:8161"),
        ({"port": "http", "scheme": "HTTPS"}, "https:orders-0:8161"),
        ({"port": "probes", "scheme": "HTTP"}, "orders-0:8162"),  # without a login
    ],
)
def test_a_bundle_has_everything_but_secrets(
    tmp_path: Path, probe: dict[str, str], place: str
) -> None:
    pod = {
        "metadata": {"name": "orders-0"},
        "spec": {
            "containers": [
                {
                    "name": "broker",
                    "ports": [
                        {"name": "http", "containerPort": 8161},
                        {"name": "probes", "containerPort": 8162},
                    ],
                    "readinessProbe": {"httpGet": {"path": "/readyz", **probe}},
                },
            ],
        },
    }
    planted = [{"metadata": {"name": place}, **part} for place, part in SECRETS.items()]
    base = "/api/v1/namespaces/ns"
    api = FakeApi(
        {
            f"{BROKERS}/orders": broker(),
            BROKERS: {"items": [broker(), *planted]},
            f"{base}/pods": {"items": [pod]},
            f"{base}/configmaps": {"items": planted},
            f"{base}/secrets": {"items": [{"metadata": {"name": "orders-credentials"}}]},
            f"{base}/events": {"items": [{"message": LINES[0]}]},
            f"{base}/pods/orders-0/log": "\n".join(LINES).encode(),
            f"{base}/pods/{place}/proxy/metrics": b"vespiary_up 1\n",
        }
    )
    target = tmp_path / "bundle.tar.gz"
    done = run(api, "support-bundle", "orders", "--file", str(target))
    assert done.exit_code == 0, done.output
    with tarfile.open(target) as archive:
        files = {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert not [name for name, text in files.items() if PLANTED in text]
    assert files["bundle/secret-names.yaml"] == "- orders-credentials\n"
    assert files["bundle/metrics/orders-0.txt"] == "vespiary_up 1\n"
    assert "bundle/logs/orders-0-broker.log" in files
    assert "statefulsets" in files["bundle/not-read.txt"], "what was refused is named"
    again = run(api, "support-bundle", "orders", "--file", str(target))
    assert again.exit_code == 2, "nothing is written over"


def test_the_reference_has_every_option_of_every_command() -> None:
    page = reference.page()
    for name, command in program.commands.items():
        part = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for one in command.params:
            if isinstance(one, click.Option):
                assert all(f"`{spelled}`" in part for spelled in one.opts), f"{name} {one.opts}"
