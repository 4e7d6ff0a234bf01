"""A command in a pod of its own, under the profile `restricted`, with claims mounted.

Called by the e2e tests that look into volumes, or at the node, from inside.
"""

from __future__ import annotations

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, wait_for

NAME = "hands"


def run_in_pod(
    cluster: KubernetesCluster,
    namespace: str,
    command: list[str],
    claims: dict[str, str] | None = None,
    *,
    image: str = "",
) -> str:
    """Run a command in an image until it ends; return what it printed.

    Args:
        cluster: The cluster.
        namespace: Where; one at a time.
        command: With its arguments.
        claims: Names of claims, which nobody else uses, by the folder below /volumes.
        image: The image; empty means the broker's.
    """
    mounted = claims or {}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": NAME,
                    "image": image or cluster.broker_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": name, "mountPath": f"/volumes/{name}"} for name in mounted
                    ],
                }
            ],
            "volumes": [
                {"name": name, "persistentVolumeClaim": {"claimName": claim}}
                for name, claim in mounted.items()
            ],
        },
    }
    cluster.apply(pod, namespace)

    def phase() -> str:
        found = (cluster.get("pod", NAME, namespace) or {}).get("status") or {}
        return str(found.get("phase")) if found.get("phase") in ("Succeeded", "Failed") else ""

    ended = wait_for(f"the pod that runs {command[0]} has ended", phase, 240)
    printed = cluster.kubectl("-n", namespace, "logs", NAME).stdout
    cluster.kubectl("-n", namespace, "delete", "pod", NAME, "--now")
    assert ended == "Succeeded", printed
    return printed
