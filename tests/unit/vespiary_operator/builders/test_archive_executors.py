"""Executors of a run: what they may do, and what Spark is told of them."""

from __future__ import annotations

import json
from typing import Any

from vespiary_operator import names
from vespiary_operator.builders import archive_executors, archive_job
from vespiary_spec.resources import API_VERSION, Broker, JournalArchive

BROKER = Broker.from_dict(
    {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns", "uid": "b"},
        "spec": {
            "storage": {"volumes": {"retention": {"size": "1Gi"}}},
            "tolerations": [{"key": "b", "operator": "Exists"}],
        },
    }
)


def archive(**spec: Any) -> JournalArchive:
    return JournalArchive.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "JournalArchive",
            "metadata": {"name": "history", "namespace": "ns", "uid": "u", "generation": 3},
            "spec": {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}, **spec},
        }
    )


def pod(**spec: Any) -> dict[str, Any]:
    return archive_job.pod_spec(archive(**spec), BROKER, image="i:1", pull_policy="Never")


def settings(container: dict[str, Any]) -> dict[str, str]:
    """Return the settings of Spark in the order in which they count."""
    command = container["command"]
    pairs = [command[n + 1] for n, part in enumerate(command) if part == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def executor(run: dict[str, Any]) -> dict[str, Any]:
    (container,) = run["containers"]
    command = container["command"]
    found: dict[str, Any] = json.loads(command[command.index("--executor-pod") + 1])
    return found


def test_a_run_without_executors_has_no_token_and_no_account_of_its_own() -> None:
    run = pod()
    assert run["automountServiceAccountToken"] is False
    assert run["serviceAccountName"] == "orders-broker"
    (container,) = run["containers"]
    assert "--executor-pod" not in container["command"]
    assert "env" not in container


def test_the_driver_alone_has_an_account_that_may_make_pods() -> None:
    run = pod(executors=2)
    assert run["automountServiceAccountToken"] is True
    assert run["serviceAccountName"] == "history-archive"
    binding = archive_executors.role_binding(archive(), role="r", is_cluster_wide=True)
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "history-archive", "namespace": "ns"}
    ]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("ClusterRole", "r")
    inside = archive_executors.role_binding(archive(), role="r", is_cluster_wide=False)
    assert inside["roleRef"]["kind"] == "Role"
    made = executor(run)
    assert made["spec"]["automountServiceAccountToken"] is False
    (container,) = run["containers"]
    account = settings(container)["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert account == "orders-broker", "an account without rights"


def test_an_executor_has_the_volumes_of_the_run_and_no_more() -> None:
    run = pod(executors=2)
    made = executor(run)
    spec = made["spec"]
    (own,), (container,) = run["containers"], spec["containers"]
    assert container["name"] == "spark-kubernetes-executor"
    assert container["securityContext"] == own["securityContext"]
    for name in ("affinity", "tolerations", "securityContext"):
        assert spec[name] == run[name], name
    claimed = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    claims = {volume["name"]: volume["persistentVolumeClaim"] for volume in claimed}
    assert {name for name, claim in claims.items() if not claim.get("readOnly")} == {"target"}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {
        "target",
        "spark-local-dir-1",
        "tmp",
    }
    assert {volume["name"] for volume in spec["volumes"]} == mounts.keys()
    assert made["metadata"]["labels"] == names.archive_labels(archive())


def test_executors_of_a_verification_write_nothing_but_their_scratch_folders() -> None:
    spec = executor(pod(executors=2, job="verify", target=None))["spec"]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {
        "spark-local-dir-1",
        "tmp",
    }
    claimed = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    assert {volume["name"] for volume in claimed} == {"retention", "large-messages"}
    assert all(volume["persistentVolumeClaim"]["readOnly"] for volume in claimed)


def test_spark_is_told_who_and_where_its_driver_is() -> None:
    (container,) = pod(executors=2, sparkConf={"spark.executor.memory": "2g"})["containers"]
    found = settings(container)
    assert found["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert found["spark.executor.instances"] == "2"
    assert found["spark.executor.memory"] == "2g"
    assert found["spark.kubernetes.container.image"] == "i:1"
    assert found["spark.kubernetes.container.image.pullPolicy"] == "Never"
    variables = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
    assert variables[found["spark.driver.host"][2:-1]] == "status.podIP"
    assert variables[found["spark.kubernetes.driver.pod.name"][2:-1]] == "metadata.name"
