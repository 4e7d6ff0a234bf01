"""The operator of this tree as a process on this machine, in the place of the installed one.

It has the token of the installed operator's account, so it may do what that one may, and reaches
the API server by whatever address it is given. Called by tests/e2e.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from vespiary_testkit.kubernetes_cluster import (
    DEPLOYMENT,
    OPERATORS,
    PATIENCE_S,
    SYSTEM_NAMESPACE,
    TUNING_NAMESPACE,
    KubernetesCluster,
    wait_for,
)


def api_server(cluster: KubernetesCluster) -> tuple[str, ssl.SSLContext]:
    """Return the URL of the API server, and what its certificate is checked with."""
    view = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    found = view["clusters"][0]["cluster"]
    if "certificate-authority-data" in found:
        data = base64.b64decode(found["certificate-authority-data"]).decode()
        return found["server"], ssl.create_default_context(cadata=data)
    return found["server"], ssl.create_default_context(cafile=found["certificate-authority"])


@contextlib.contextmanager
def installed_operator_stopped(cluster: KubernetesCluster) -> Iterator[None]:
    """Have no pod of the installed operator as long as the context lasts."""
    scale = ("-n", SYSTEM_NAMESPACE, "scale", DEPLOYMENT)
    cluster.begin_disturbance()
    cluster.kubectl(*scale, "--replicas=0")
    try:
        wait_for(
            "the installed operator has ended",
            lambda: not cluster.items("pods", SYSTEM_NAMESPACE, OPERATORS),
        )
        yield
    finally:
        cluster.kubectl(*scale, "--replicas=1")
        cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=300s", timeout_s=310
        )


def _free_port() -> int:
    """Return a port that nobody has, below those that the kernel gives out until it is bound."""
    while True:
        port = random.randint(20_000, 29_999)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("0.0.0.0", port))
            return port


class LocalOperator:
    """One process, and others after it."""

    def __init__(self, cluster: KubernetesCluster, url: str, folder: Path) -> None:
        self._log = folder / "operator.log"
        self._port = _free_port()
        token = cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "create", "token", "vespiary", "--duration=1h"
        ).stdout.strip()
        config = folder / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "faulty",
                    "clusters": [{"name": "faulty", "cluster": {"server": url}}],
                    "users": [{"name": "operator", "user": {"token": token}}],
                    "contexts": [
                        {"name": "faulty", "context": {"cluster": "faulty", "user": "operator"}}
                    ],
                }
            ),
            "utf-8",
        )
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("VESPIARY_")},
            "KUBECONFIG": str(config),
            "TMPDIR": str(folder),
            "VESPIARY_OWN_NAMESPACE": SYSTEM_NAMESPACE,
            "VESPIARY_TUNING_NAMESPACE": TUNING_NAMESPACE,
            "VESPIARY_BROKER_IMAGE": cluster.broker_image,
            "VESPIARY_OPERATOR_IMAGE": cluster.operator_image,
            "VESPIARY_HTTP_PORT": str(self._port),
            "VESPIARY_LIVENESS_PORT": str(_free_port()),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vespiary_operator", "run"],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def keep_running(self) -> bool:
        """Start it again if it ended by itself, as a Deployment would; return whether it had."""
        if not self.has_ended:
            return False
        self.start()
        return True

    def kill(self) -> None:
        """End it with signal 9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)

    def page(self, path: str) -> str:
        """Return what it answers; empty if it does not."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}{path}", timeout=5
            ) as answer:
                found: bytes = answer.read()
                return found.decode()
        except (OSError, urllib.error.URLError):
            return ""

    def wait_until_ready(self, timeout_s: float = PATIENCE_S) -> None:
        wait_for(
            "the operator is ready", lambda: self.page("/readyz").startswith("ready"), timeout_s
        )
