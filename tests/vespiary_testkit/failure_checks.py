"""What must not have happened while something failed: pods made twice, lines that name a bug.

Called by tests/e2e.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vespiary_testkit.kubernetes_cluster import KubernetesCluster

BROKERS = "app.kubernetes.io/component=broker"


class PodsSeen(threading.Thread):
    """Every broker pod that there ever was in a namespace, as a watch saw them."""

    def __init__(self, namespace: str) -> None:
        super().__init__(name="pods-seen", daemon=True)
        self.uids: dict[str, list[str]] = {}
        shown = r"{.metadata.name} {.metadata.uid}{'\n'}"
        self._process = subprocess.Popen(
            [
                *("kubectl", "-n", namespace, "get", "pods", "-l", BROKERS),
                *("--watch", "-o", f"jsonpath={shown}"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, _, uid = line.strip().partition(" ")
            known = self.uids.setdefault(name, [])
            if uid and uid not in known:
                known.append(uid)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def seen_pods(namespace: str) -> Iterator[PodsSeen]:
    seen = PodsSeen(namespace)
    seen.start()
    try:
        yield seen
    finally:
        seen.stop()


def check_log(log: str) -> None:
    """Fail on a line that names a bug of ours; what the API server did wrong is said in words."""
    assert "a bug" not in log
    assert not re.search(r"Traceback|Task exception was never|never awaited", log), log[-6000:]


def names_of(cluster: KubernetesCluster, kind: str, namespace: str) -> list[str]:
    return sorted(
        item["metadata"]["name"]
        for item in cluster.items(kind, namespace)
        if item["metadata"]["name"] not in ("default", "kubernetes", "kube-root-ca.crt")
    )
