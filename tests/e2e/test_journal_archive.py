"""JournalArchives on a real cluster: Parquet of what a broker held, each message once, by Spark.

The archive reads the retention folder, or a snapshot, of a running broker's volumes, which it
mounts read-only; what it wrote is read back by a pod. Another one verifies the same copies, before
and after one of them is damaged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import stomp
import yaml

from vespiary_testkit.cluster_pods import run_in_pod
from vespiary_testkit.kubernetes_cluster import (
    ARCHIVE,
    ROOT,
    KubernetesCluster,
    NoCluster,
    build_pipeline_image,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

BODY_BYTES = 8192
RUN_S = 400

COUNT = """
import json, sys
from pathlib import Path
import pyarrow.parquet as pq
numbers = []
for path in sorted(Path("/volumes/exports").rglob("export=*/**/*.parquet")):
    numbers += [int(bytes(body)[:8]) for body in pq.read_table(path)["body"].to_pylist()]
print(json.dumps(numbers))
"""


FLIP = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
(byte,) = os.pread(descriptor, 1, int(sys.argv[2]))
os.pwrite(descriptor, bytes([byte ^ 1]), int(sys.argv[2]))
os.fsync(descriptor)
"""
FIRST_BLOCK = 4096


@pytest.fixture(scope="module", autouse=True)
def _image(cluster: KubernetesCluster) -> None:
    try:
        build_pipeline_image(cluster)
    except NoCluster as reason:
        pytest.skip(str(reason))


def claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "128Mi"}}},
    }


def archive(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "JournalArchive",
        "metadata": {"name": name},
        "spec": {
            "brokerRef": {"name": "orders"},
            "target": {"claimName": "exports"},
            "resources": {"limits": {"memory": "2Gi"}},
            "sparkConf": {"spark.sql.shuffle.partitions": "2"},
            **spec,
        },
    }


def verification(name: str) -> dict[str, Any]:
    document = archive(name, job="verify")
    del document["spec"]["target"]
    return document


def keeping_broker() -> dict[str, Any]:
    """Return a Broker with small journal files, of which it keeps copies."""
    document = small_broker("orders", config={"journalMinFiles": 2, "journalFileSize": "512Ki"})
    document["spec"]["storage"]["volumes"]["retention"] = {"size": "128Mi"}
    return document


def send(cluster: KubernetesCluster, namespace: str, numbers: range) -> None:
    """Send numbered messages and wait for all receipts."""
    with cluster.forwarded("service/orders", 61613, namespace) as port:
        connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        receipts = Receipts()
        connection.set_listener("", receipts)
        connection.connect("admin", cluster.password("orders", namespace), wait=True)
        for number in numbers:
            body = f"{number:08d}".ljust(BODY_BYTES, ".")
            headers = {"persistent": "true", "receipt": str(number)}
            connection.send("/queue/orders", body, headers=headers)
        wait_for("all receipts", lambda: receipts.numbers >= set(numbers))
        connection.disconnect()


class Receipts(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def on_receipt(self, frame: Any) -> None:
        if frame.headers["receipt-id"].isdecimal():
            self.numbers.add(int(frame.headers["receipt-id"]))


def status(cluster: KubernetesCluster, namespace: str, name: str) -> dict[str, Any]:
    found = cluster.get(ARCHIVE, name, namespace)
    assert found is not None
    said: dict[str, Any] = found.get("status") or {}
    return said


def condition(
    cluster: KubernetesCluster, namespace: str, name: str, kind: str = "Ready"
) -> dict[str, Any]:
    conditions = status(cluster, namespace, name).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def until(
    cluster: KubernetesCluster, namespace: str, name: str, reason: str, generation: int = 1
) -> dict[str, Any]:
    """Return the condition Ready once it has a reason, for this generation or a later one."""

    def look() -> dict[str, Any] | None:
        found = condition(cluster, namespace, name)
        is_new = int(found.get("observedGeneration") or 0) >= generation
        return found if found.get("reason") == reason and is_new else None

    return wait_for(f"{reason} of the JournalArchive {name}", look, RUN_S)


def exported(cluster: KubernetesCluster, namespace: str) -> list[int]:
    """Return the numbers of all messages in the Parquet files, as they stand there."""
    command = ["python3", "-c", COUNT]
    image = cluster.pipeline_image
    printed = run_in_pod(cluster, namespace, command, {"exports": "exports"}, image=image)
    found: list[int] = json.loads(printed.strip().splitlines()[-1])
    return found


def in_broker(cluster: KubernetesCluster, namespace: str, *command: str) -> str:
    """Run a command beside the broker, which may write to its volumes; return what it printed."""
    pod = ("-n", namespace, "exec", "orders-0", "-c", "broker", "--")
    return cluster.kubectl(*pod, *command).stdout


def copies(cluster: KubernetesCluster, namespace: str) -> list[str]:
    """Return the copies of journal files that the broker has kept."""
    find = ("find", "/var/lib/vespiary/retention", "-name", "activemq-data-*.hq")
    return sorted(in_broker(cluster, namespace, *find).split())


def kept_files(cluster: KubernetesCluster, namespace: str) -> int:
    """Return how many copies of journal files the broker has kept."""
    return len(copies(cluster, namespace))


def test_runs_export_each_message_once(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(keeping_broker(), namespace)
    cluster.apply(claim("exports"), namespace)
    cluster.apply(archive("history"), namespace)
    cluster.wait_until_ready("orders", namespace)
    first = until(cluster, namespace, "history", "RunSucceeded")
    assert "No journal file was full yet" in first["message"]

    send(cluster, namespace, range(300))
    wait_for("copies are kept", lambda: kept_files(cluster, namespace) >= 3)
    change = {"spec": {"activeDeadlineSeconds": 3600}}
    patch = ("-n", namespace, "patch", ARCHIVE, "history", "--type", "merge", "-p")
    cluster.kubectl(*patch, json.dumps(change))
    until(cluster, namespace, "history", "RunSucceeded", generation=2)
    run = status(cluster, namespace, "history")["lastRun"]
    written = exported(cluster, namespace)
    assert run["rows"] == len(written) > 50
    assert run["bytes"] > 0
    assert sorted(written) == sorted(set(written))
    job = cluster.get("job", run["name"], namespace)
    assert job is not None
    assert_reads_only(job["spec"]["template"]["spec"], {"target"})

    kept = kept_files(cluster, namespace)
    send(cluster, namespace, range(300, 600))
    wait_for("more copies are kept", lambda: kept_files(cluster, namespace) > kept + 2)
    cluster.apply(verification("verified"), namespace)  # while the next minute is waited for
    cluster.kubectl(*patch, json.dumps({"spec": {"schedule": "* * * * *"}}))

    def has_run_by_cron() -> bool:
        # Not by the status: one that takes more than its minute is followed by the next at once.
        return any(
            is_by_cron(job["metadata"]["name"]) and job["status"].get("succeeded")
            for job in cluster.items("jobs", namespace)
        )

    wait_for("a run of the schedule has succeeded", has_run_by_cron, RUN_S)
    cluster.kubectl(*patch, json.dumps({"spec": {"suspend": True}}))
    until(cluster, namespace, "history", "Suspended", generation=4)
    wait_for(
        "no run goes on",
        lambda: status(cluster, namespace, "history")["lastRun"]["outcome"] != "Running",
        RUN_S,
    )
    last = status(cluster, namespace, "history")["lastRun"]
    assert is_by_cron(last["name"])
    assert last["outcome"] == "Succeeded"
    damaged = damage_a_copy(cluster, namespace)
    after = exported(cluster, namespace)
    assert len(after) == len(set(after)) > len(written) + 50
    assert set(written) < set(after)
    assert set(after) == set(range(max(after) + 1)), "what is there has no gap"
    shown = cluster.kubectl("get", ARCHIVE, "-n", namespace).stdout
    assert all(word in shown for word in ("history", "orders", "* * * * *", "Succeeded"))
    found = status(cluster, namespace, "history")
    assert found["lagSeconds"] >= 0
    reasons = {event["reason"] for event in cluster.items("events", namespace)}
    assert "RunSucceeded" in reasons

    cluster.kubectl(*patch, json.dumps({"spec": {"schedule": None}}))
    wait_for("the CronJob is gone", lambda: not cluster.items("cronjobs", namespace))
    assert_found(cluster, namespace, damaged)
    cluster.kubectl("-n", namespace, "delete", ARCHIVE, "verified")
    cluster.kubectl(*patch, json.dumps({"spec": {"successfulJobsHistoryLimit": 0}}))
    wait_for("Jobs that nobody keeps are gone", lambda: not cluster.items("jobs", namespace))
    assert status(cluster, namespace, "history")["lastRun"] == found["lastRun"]


def is_by_cron(job: str) -> bool:
    """Whether a Job has its name of a CronJob, which names it by the minute."""
    return job.startswith("history-archive-2") and len(job) > 20


def damage_a_copy(cluster: KubernetesCluster, namespace: str) -> str:
    """Flip a bit of the oldest copy, which verified before; have it verified again; return it."""
    found = until(cluster, namespace, "verified", "RunSucceeded")
    assert "nothing is damaged" in found["message"]
    run = status(cluster, namespace, "verified")["lastRun"]
    assert run["damages"] == 0
    assert run["files"] >= 3
    assert run["rows"] > 100
    assert run["bytes"] > 100 * BODY_BYTES
    job = cluster.get("job", run["name"], namespace)
    assert job is not None
    assert_reads_only(job["spec"]["template"]["spec"], set())

    oldest = copies(cluster, namespace)[0]
    in_broker(cluster, namespace, "python3", "-c", FLIP, oldest, str(FIRST_BLOCK + 100))
    change = json.dumps({"spec": {"activeDeadlineSeconds": 3600}})
    cluster.kubectl(
        *("-n", namespace, "patch", ARCHIVE, "verified", "--type", "merge", "-p"), change
    )
    return oldest


def assert_found(cluster: KubernetesCluster, namespace: str, damaged: str) -> None:
    """The verification says which copy is damaged, and where; nothing else is, nor tried again."""
    found = until(cluster, namespace, "verified", "DamageFound", generation=2)
    assert f"1 damage was found, the first at {damaged}:{FIRST_BLOCK}: " in found["message"]
    assert "move it out of the folder" in found["message"]
    assert found["status"] == "False"
    assert condition(cluster, namespace, "verified", "Stalled")["reason"] == "DamageFound"
    said = status(cluster, namespace, "verified")
    run = said["lastRun"]
    assert (run["name"], run["outcome"], run["damages"]) == ("verified-archive-2", "Failed", 1)
    assert run["rows"] > 50
    assert said["lastSuccessTime"] == run["startTime"], "it has looked"

    def told() -> list[dict[str, Any]]:
        events = cluster.items("events", namespace)
        return [event for event in events if event["reason"] == "DamageFound"]

    assert {event["type"] for event in wait_for("the Event of the damage", told)} == {"Warning"}
    job = cluster.get("job", run["name"], namespace)
    assert job is not None
    assert job["status"]["failed"] == 1
    printed = cluster.kubectl("-n", namespace, "logs", f"job/{run['name']}").stdout
    assert damaged in printed


def assert_reads_only(pod: dict[str, Any], targets: set[str]) -> None:
    """Everything of the broker is mounted read-only, twice over."""
    (container,) = pod["containers"]
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {*targets, "scratch", "tmp"}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert {name for name, one in claims.items() if not one.get("readOnly")} == targets
    assert pod["automountServiceAccountToken"] is False


def test_what_is_missing_is_said_in_a_sentence(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(archive("history"), namespace)
    found = until(cluster, namespace, "history", "BrokerMissing")
    assert f"There is no Broker {namespace}/orders" in found["message"]
    assert condition(cluster, namespace, "history", "SourceReady")["status"] == "False"
    assert condition(cluster, namespace, "history", "Stalled")["status"] == "True"

    cluster.apply(small_broker("orders"), namespace)
    found = until(cluster, namespace, "history", "RetentionOff")
    assert "spec.storage.volumes.retention" in found["message"]
    assert not cluster.items("jobs", namespace)
    wait_for(  # Events are written behind the status
        "the Event of what is missing",
        lambda: [e for e in cluster.items("events", namespace) if e["reason"] == "RetentionOff"],
    )

    cluster.kubectl("-n", namespace, "delete", "broker.vespiary.dev", "orders")
    cluster.kubectl("-n", namespace, "delete", "pvc", "--all", timeout_s=240)
    cluster.apply(keeping_broker(), namespace)
    found = until(cluster, namespace, "history", "TargetMissing")
    assert f"There is no PersistentVolumeClaim {namespace}/exports" in found["message"]
    assert condition(cluster, namespace, "history", "SourceReady")["status"] == "True"

    other = archive("third", brokerRef={"name": "orders", "ordinal": 2})
    cluster.apply(other, namespace)
    found = until(cluster, namespace, "third", "SourceClaimMissing")
    assert "retention-orders-2" in found["message"]

    cluster.apply(archive("own", target={"claimName": "journal-orders-0"}), namespace)
    until(cluster, namespace, "own", "TargetIsSource")

    document = archive("bad", sparkConf={"spark.sql.shuffle.partitions": "none"})
    send_until_kept(cluster, namespace)  # before a run can begin, which else had nothing to read
    cluster.apply(claim("exports"), namespace)
    cluster.apply(document, namespace)
    until(cluster, namespace, "history", "RunSucceeded")
    found = until(cluster, namespace, "bad", "RunFailed")
    assert "spark.sql.shuffle.partitions" in found["message"]
    assert condition(cluster, namespace, "bad", "Stalled")["reason"] == "RunFailed"


def send_until_kept(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.wait_until_ready("orders", namespace)
    send(cluster, namespace, range(100))
    wait_for("a copy is kept", lambda: kept_files(cluster, namespace))


def test_a_snapshot_is_exported(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.apply(claim("exports"), namespace)
    cluster.wait_until_ready("orders", namespace)
    send(cluster, namespace, range(50))
    hibernate = json.dumps({"spec": {"hibernate": True}})
    cluster.kubectl(
        *("-n", namespace, "patch", "broker.vespiary.dev", "orders", "--type", "merge", "-p"),
        hibernate,
    )
    wait_for("the broker has stopped", lambda: not cluster.get("pod", "orders-0", namespace))
    roles = ("bindings", "journal", "paging", "large-messages")
    run_in_pod(
        cluster,
        namespace,
        ["vespiary", "journal", "snapshot", "--name", "before", "--data", "/volumes"],
        {role: f"{role}-orders-0" for role in roles},
    )
    cluster.apply(archive("copy", source={"kind": "snapshot", "name": "before"}), namespace)
    until(cluster, namespace, "copy", "RunSucceeded")
    assert status(cluster, namespace, "copy")["lastRun"]["rows"] == 50
    assert sorted(exported(cluster, namespace)) == list(range(50))


def test_executors_share_the_work_of_a_run(cluster: KubernetesCluster, namespace: str) -> None:
    """By the broker's user, which is one that no image knows."""
    document = keeping_broker()
    user = {"runAsUser": 20000, "runAsGroup": 20000, "fsGroup": 20000}
    document["spec"]["podTemplate"] = {"securityContext": user}
    cluster.apply(document, namespace)
    cluster.apply(claim("exports"), namespace)
    send_until_kept(cluster, namespace)
    settings = {"spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    cluster.apply(archive("shared", executors=1, sparkConf=settings), namespace)

    def executors() -> list[dict[str, Any]]:
        return cluster.items("pods", namespace, "spark-role=executor")

    (executor,) = wait_for("there is an executor", executors, RUN_S)
    assert_is_an_executor(executor)
    until(cluster, namespace, "shared", "RunSucceeded")
    run = status(cluster, namespace, "shared")["lastRun"]
    written = exported(cluster, namespace)
    assert run["rows"] == len(written) > 50
    assert sorted(written) == sorted(set(written))
    wait_for("executors go with the run", lambda: not executors())

    patch = ("-n", namespace, "patch", ARCHIVE, "shared", "--type", "merge", "-p")
    cluster.kubectl(*patch, json.dumps({"spec": {"executors": 0}}))
    until(cluster, namespace, "shared", "RunSucceeded", generation=2)
    assert cluster.get("rolebinding", "shared-archive", namespace) is None
    assert exported(cluster, namespace) == written, "nothing was new"


def assert_is_an_executor(pod: dict[str, Any]) -> None:
    """It has no token, may write its target and its scratch folders, and nothing else."""
    spec = pod["spec"]
    assert spec["securityContext"]["runAsUser"] == 20000
    assert spec["automountServiceAccountToken"] is False
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Pod", "it goes with its driver"
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"target", "spark-local-dir-1", "tmp"}
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert {v["name"] for v in claims if not v["persistentVolumeClaim"].get("readOnly")} == {
        "target"
    }


def test_the_examples_are_taken(cluster: KubernetesCluster, namespace: str) -> None:
    for example in sorted((ROOT / "examples").glob("archive*.yaml")):
        kinds = {one["kind"] for one in yaml.safe_load_all(example.read_text("utf-8"))}
        assert "JournalArchive" in kinds
        cluster.kubectl("-n", namespace, "apply", "--dry-run=server", "-f", str(example))
