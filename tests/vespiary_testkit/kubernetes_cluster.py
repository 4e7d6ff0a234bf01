"""A real Kubernetes for the e2e tests: found, given images and the chart, and left as it was.

Owns the search for a cluster (KUBECONFIG, or the script beside the repository) and everything that
is installed into it. Called by tests/e2e/conftest.py and, for its class, by the tests there.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vespiary_testkit.api_reads import ApiReads, Unknown
from vespiary_testkit.cluster_images import remove_stale_images
from vespiary_testkit.operator_rights import OperatorRights

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT.parent / "shared" / "cluster" / "cluster"
IMAGE_SOURCES = ("Dockerfile", "pyproject.toml", "setup.py", "native", "crds", "broker", "operator")
PIPELINE_SOURCES = (*IMAGE_SOURCES, "pipeline")
SYSTEM_NAMESPACE = "vespiary-e2e"
RELEASE = "vespiary"
TUNING_NAMESPACE = "vespiary-node-tuning"
DEPLOYMENT = "deployment/vespiary"
OPERATORS = "app.kubernetes.io/name=vespiary,app.kubernetes.io/component=operator"
BROKER = "brokers.vespiary.dev"
TUNING = "brokernodetunings.vespiary.dev"
ARCHIVE = "journalarchives.vespiary.dev"

PATIENCE_S = 300.0
"""So long is waited for what has to come. It measures nothing: only a test that fails waits so
long, and the machine may be several times slower than the one it was written on, and busy."""

BUILD_S = 3600.0
"""So long may take what is built once: Kubernetes, or an image, by the time that others leave."""

_UNREACHED = re.compile(
    r"Unable to connect|connection (refused|reset|lost)|[Tt]ime(d )?out|deadline exceeded"
    r"|unexpected EOF|currently unable to handle|ServiceUnavailable|Too ?Many ?Requests|etcdserver"
)
"""What kubectl says of an API server that did not answer."""


class NoCluster(Exception):  # noqa: N818 - a reason to skip, no failure
    """Why there is no cluster to test on."""


def run(
    *command: str, stdin: str | None = None, timeout_s: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check:
        assert done.returncode == 0, f"{' '.join(command)[:200]}\n{done.stdout}{done.stderr}"
    return done


def tree_hash(sources: Sequence[str] = IMAGE_SOURCES) -> str:
    """Return a hash of everything that gets into the images."""
    digest = hashlib.sha256()
    for source in sources:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            if file.suffix in (".so", ".o", ".pyc", ".yaml"):
                continue
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def wait_for(
    what: str, look: Callable[[], T | None], timeout_s: float = PATIENCE_S, pause_s: float = 0.5
) -> T:
    """Return the first result that is true; fail with `what` after a time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(pause_s)


def small_broker(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Broker with small volumes."""
    volumes = {
        "bindings": {"size": "64Mi"},
        "journal": {"size": "256Mi"},
        "paging": {"size": "64Mi"},
        "largeMessages": {"size": "64Mi"},
    }
    return {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "Broker",
        "metadata": {"name": name},
        "spec": {"storage": {"volumes": volumes}, "config": {"journalMinFiles": 2}, **spec},
    }


class KubernetesCluster:
    """A cluster with the operator in it.

    Attributes:
        script: The script that made it, or None for somebody's own cluster.
        operator_image: Image of the operator, in the cluster; empty before `installed`.
        broker_image: Image of brokers, in the cluster; empty before `installed`.
        pipeline_image: Image of archives; in the cluster after `build_pipeline_image`.
        rights: What all operators asked of the API server; None before the session's fixture.
        is_shared: Whether tests of several processes use it at once.
    """

    def __init__(self, script: Path | None) -> None:
        self.script = script
        self.operator_image = ""
        self.broker_image = ""
        self.pipeline_image = ""
        self.rights: OperatorRights | None = None
        self.is_shared = False

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        return run("kubectl", *arguments, stdin=stdin, check=check, timeout_s=timeout_s)

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        if arguments[0] in ("upgrade", "rollback", "uninstall"):
            self.begin_disturbance()
        return run("helm", *arguments, check=check, timeout_s=600)

    def read(self, *arguments: str) -> str:
        """Return what kubectl prints of what it reads; asked again if nobody answers it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            done = self.kubectl(*arguments, check=False)
            if done.returncode == 0:
                return done.stdout
            is_over = time.monotonic() > until or not _UNREACHED.search(done.stderr)
            assert not is_over, f"kubectl {' '.join(arguments)}\n{done.stderr}"
            time.sleep(1)

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object, or None."""
        with contextlib.suppress(Unknown):  # kubectl says why, or tries until it is over
            return self._reads.get(kind, name, namespace)
        where = ["-n", namespace] if namespace else []
        text = self.read("get", kind, name, *where, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def items(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        with contextlib.suppress(Unknown):
            return self._reads.items(kind, namespace, selector)
        chosen = ["-l", selector] if selector else []
        text = self.read("get", kind, "-n", namespace, *chosen, "-o", "json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    @functools.cached_property
    def _reads(self) -> ApiReads:
        return ApiReads()

    def apply(self, document: dict[str, Any], namespace: str = "") -> None:
        where = ["-n", namespace] if namespace else []
        self.kubectl("apply", *where, "-f", "-", stdin=json.dumps(document))

    def install(self, *settings: str) -> None:
        """Install or upgrade the chart of this tree and wait for the operator.

        Args:
            settings: Values beside those of the images, each as `--set` takes it.
        """
        self.install_chart(str(ROOT / "charts" / "vespiary"), *settings)

    def install_chart(self, chart: str, *settings: str) -> None:
        """Install or upgrade a chart and wait for the operator.

        Args:
            chart: Folder or package.
            settings: Values beside those of the images, each as `--set` takes it.
        """
        operator, _, operator_tag = self.operator_image.rpartition(":")
        broker, _, broker_tag = self.broker_image.rpartition(":")
        pipeline, _, pipeline_tag = self.pipeline_image.rpartition(":")
        values = [
            f"image.repository={operator}",
            f"image.tag={operator_tag}",
            f"brokerImage.repository={broker}",
            f"brokerImage.tag={broker_tag}",
        ]
        if (Path(chart) / "values.yaml").is_file():  # an older package knows no such image
            values += [f"pipelineImage.repository={pipeline}", f"pipelineImage.tag={pipeline_tag}"]
        chosen = [part for value in values for part in ("--set-string", value)]
        chosen += [part for value in settings for part in ("--set", value)]
        self.helm(
            "upgrade",
            "--install",
            RELEASE,
            chart,
            "--namespace",
            SYSTEM_NAMESPACE,
            "--create-namespace",
            "--take-ownership",  # of definitions that an earlier release left, as it should
            "--wait",
            "--timeout",
            "400s",
            *chosen,
        )

    def begin_disturbance(self) -> None:
        """Make sure that nobody else is here, before the operator of all Brokers is another one.

        What it asked for is read: it goes with it.
        """
        assert not self.is_shared, "other tests would notice it: mark this one `alone`"
        if self.rights is not None:
            self.rights.read_now()

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "-n", SYSTEM_NAMESPACE, "--wait", check=False)

    def restart_operator(self) -> None:
        self.begin_disturbance()
        self.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "restart", DEPLOYMENT)
        self.kubectl(
            "-n", SYSTEM_NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=300s", timeout_s=310
        )

    # --- brokers --------------------------------------------------------------------------------

    def broker(self, name: str, namespace: str) -> dict[str, Any]:
        found = self.get(BROKER, name, namespace)
        assert found is not None, f"the Broker {namespace}/{name} is gone"
        return found

    def condition(self, name: str, namespace: str, kind: str) -> dict[str, Any]:
        """Return a condition of a Broker; empty as long as it has none."""
        status = self.broker(name, namespace).get("status") or {}
        return next((c for c in status.get("conditions") or () if c["type"] == kind), {})

    def wait_for_condition(
        self,
        name: str,
        namespace: str,
        kind: str,
        status: str,
        *,
        timeout_s: float = PATIENCE_S,
        generation: int = 0,
    ) -> dict[str, Any]:
        """Return the condition once it has this status, for this generation or a later one."""

        def look() -> dict[str, Any] | None:
            found = self.condition(name, namespace, kind)
            seen = int(found.get("observedGeneration") or 0)
            return found if found.get("status") == status and seen >= generation else None

        return wait_for(f"{kind}={status} of the Broker {name}", look, timeout_s)

    def wait_until_ready(
        self,
        name: str,
        namespace: str,
        *,
        timeout_s: float = PATIENCE_S,
        without: Collection[str] = (),
    ) -> None:
        """Return once a Broker says that it is ready.

        Args:
            name: The Broker.
            namespace: Where it is.
            timeout_s: How long that may take.
            without: UIDs of pods that are gone. A status that still knows one was written before,
                and what it says of being ready with it.
        """

        def look() -> bool:
            status = self.broker(name, namespace).get("status") or {}
            known = {pod["uid"] for pod in status.get("knownPods") or ()}
            conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
            return conditions.get("Ready") == "True" and known.isdisjoint(without)

        wait_for(f"Ready=True of the Broker {name}", look, timeout_s)

    def password(self, name: str, namespace: str) -> str:
        secret = self.get("secret", f"{name}-credentials", namespace)
        assert secret is not None
        return base64.b64decode(secret["data"]["admin"]).decode()

    @contextlib.contextmanager
    def forwarded(self, target: str, port: int, namespace: str) -> Iterator[int]:
        """Forward a port of a Service or pod to loopback; yield the local port."""
        process = subprocess.Popen(
            ["kubectl", "-n", namespace, "port-forward", target, f":{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Forwarding from"), line
            yield int(line.split("->")[0].rpartition(":")[2])
        finally:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()

    def kill_broker(self, pod: str, namespace: str) -> str:
        """End a broker's process with signal 9; return how it was done.

        A process 1 cannot be killed from inside its own PID namespace, so it is done from the node
        where that can be reached, and by deleting the pod without grace where it cannot.
        """
        if self.script is None:
            self.kubectl(
                "-n", namespace, "delete", "pod", pod, "--force", "--grace-period=0", "--wait=false"
            )
            return "pod deleted without grace"
        self.signal_container(pod, namespace, "broker", "KILL")
        return "kill -9 on the node"

    def signal_container(self, pod: str, namespace: str, container: str, signal: str) -> None:
        """Send a signal to the first process of a container, from the node, once it runs."""
        assert self.script is not None, "the node cannot be reached"

        def is_sent() -> bool:
            found = self.get("pod", pod, namespace) or {"status": {}}
            statuses = found["status"].get("containerStatuses") or ()
            known = {s["name"]: s.get("containerID", "") for s in statuses}
            identity = known.get(container, "").partition("//")[2]
            tasks = run(str(self.script), "enter", "ctr", "-n", "k8s.io", "task", "ls").stdout
            lines = [line.split() for line in tasks.splitlines()]
            for task, pid, *_ in lines if identity else ():
                if task == identity and pid.isdecimal():
                    command = (str(self.script), "enter", "kill", f"-{signal}", pid)
                    return run(*command, check=False).returncode == 0
            return False

        # What the pod says of its container may be that of the one before, which has ended: nobody
        # has its process number by then, or nobody lists it.
        wait_for(f"{container} of {pod} runs", is_sent, pause_s=0.2)

    def signal_component(self, name: str, signal: str) -> None:
        """Send a signal to a component of Kubernetes, such as `kubelet`, from the node."""
        assert self.script is not None, "the node cannot be reached"
        assert not self.is_shared, "other tests would notice it: mark this one `alone`"
        found = run(str(self.script), "enter", "ps", "-C", name, "-o", "pid=").stdout
        (pid,) = found.split()
        run(str(self.script), "enter", "kill", f"-{signal}", pid)

    def operators(self) -> list[dict[str, Any]]:
        """Return the pods of the installed operator that are not on their way out."""
        return [
            pod
            for pod in self.items("pods", SYSTEM_NAMESPACE, OPERATORS)
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def describe(self, namespace: str) -> str:
        """Return what helps to understand a failure."""
        parts = []
        for command in (
            ["get", "brokers.vespiary.dev,statefulsets,pods,pvc", "-n", namespace, "-o", "wide"],
            ["describe", "brokers.vespiary.dev,journalarchives.vespiary.dev", "-n", namespace],
            ["describe", "pods", "-n", namespace],
            ["logs", "-n", SYSTEM_NAMESPACE, DEPLOYMENT, "--tail=80"],
        ):
            done = self.kubectl(*command, check=False)
            parts.append(f"$ kubectl {' '.join(command)}\n{done.stdout}{done.stderr}")
        return "\n".join(parts)


def _exports(script: Path) -> dict[str, str]:
    """Start the script's cluster and return the variables that it prints."""
    done = run(str(script), "up", timeout_s=BUILD_S)
    shown = run("bash", "-c", 'eval "$0"; env -0', done.stdout).stdout
    after = dict(part.partition("=")[::2] for part in shown.split("\0") if part)
    return {name: after[name] for name in ("KUBECONFIG", "PATH") if name in after}


def _is_up(script: Path) -> bool:
    return run(str(script), "kubectl", "get", "--raw", "/readyz", check=False).returncode == 0


def build_images(found: KubernetesCluster) -> None:
    """Have the images of operator and broker, made from this tree where that can be done.

    Raises:
        NoCluster: Somebody's own cluster, and no images are named for it.
    """
    operator = os.environ.get("VESPIARY_E2E_OPERATOR_IMAGE", "")
    broker = os.environ.get("VESPIARY_E2E_BROKER_IMAGE", "")
    pipeline_hash, own_hash = tree_hash(PIPELINE_SOURCES), tree_hash()
    own = f"vespiary/pipeline:e2e-{pipeline_hash}"
    found.pipeline_image = os.environ.get("VESPIARY_E2E_PIPELINE_IMAGE", own)
    if operator and broker:
        found.operator_image, found.broker_image = operator, broker
        return
    if found.script is None:
        raise NoCluster(
            "VESPIARY_E2E_OPERATOR_IMAGE and VESPIARY_E2E_BROKER_IMAGE have to name images that "
            "the cluster has (docs/howto/kubernetes.md says how for kind and minikube)"
        )
    remove_stale_images(found.script, (own_hash, pipeline_hash))
    tag = f"e2e-{own_hash}"
    found.operator_image, found.broker_image = f"vespiary/operator:{tag}", f"vespiary/broker:{tag}"
    for image in (found.operator_image, found.broker_image):
        _build(found.script, image)


def _build(script: Path, image: str) -> None:
    """Have an image `vespiary/TARGET:TAG` of this tree in the cluster."""
    there = run(str(script), "enter", "ctr", "-n", "k8s.io", "images", "ls", "-q").stdout
    if f"docker.io/{image}" not in there.split():
        target = image.partition("/")[2].partition(":")[0]
        run(str(script), "image", str(ROOT), image, "--target", target, timeout_s=BUILD_S)


def build_pipeline_image(found: KubernetesCluster) -> None:
    """Have the image of archives in the cluster; minutes, so only where a test needs it.

    Raises:
        NoCluster: Somebody's own cluster, and no image is named for it.
    """
    if os.environ.get("VESPIARY_E2E_PIPELINE_IMAGE"):
        return
    if found.script is None:
        raise NoCluster("VESPIARY_E2E_PIPELINE_IMAGE has to name an image that the cluster has")
    _build(found.script, found.pipeline_image)


@contextlib.contextmanager
def cluster() -> Iterator[KubernetesCluster]:
    """Yield a cluster as it is found; end it again if it was started for this.

    Raises:
        NoCluster: There is none to be had; says why.
    """
    script = SCRIPT if SCRIPT.is_file() else None
    given = os.environ.get("KUBECONFIG", "")
    was_up = True
    before = dict(os.environ)
    if script is not None and (not given or "vespiary-cluster" in given):
        was_up = _is_up(script)
        os.environ.update(_exports(script))
    elif given:
        script = None
    else:
        raise NoCluster("KUBECONFIG names no cluster, and there is no script that makes one")
    try:
        for tool in ("kubectl", "helm"):
            if shutil.which(tool) is None:
                raise NoCluster(f"{tool} is not on PATH")
        yield KubernetesCluster(script)
    finally:
        if script is not None and not was_up:
            run(str(script), "down", timeout_s=120)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def installed(found: KubernetesCluster) -> Iterator[None]:
    """Have the chart of this tree in the cluster, with images of this tree.

    Raises:
        NoCluster: An operator is there already, or there are no images; says so.
    """
    others = json.loads(
        found.kubectl(
            "get",
            "deployments",
            "-A",
            "-l",
            "app.kubernetes.io/name=vespiary,app.kubernetes.io/component=operator",
            "-o",
            "json",
        ).stdout
    )["items"]
    places = {item["metadata"]["namespace"] for item in others} - {SYSTEM_NAMESPACE}
    if places:
        raise NoCluster(f"an operator looks after this cluster already, in {', '.join(places)}")

    def is_going(name: str) -> bool:
        there = found.get("namespace", name)
        return there is not None and "deletionTimestamp" in there["metadata"]

    build_images(found)
    definitions = found.kubectl("get", "crd", "-o", "name").stdout
    had_crds = BROKER in definitions
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": SYSTEM_NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    for name in (SYSTEM_NAMESPACE, TUNING_NAMESPACE):  # those of a session that ended just now
        wait_for(f"the namespace {name} has gone, or is to stay", lambda: not is_going(name))  # noqa: B023
    found.apply(namespace)
    try:
        found.install()
        yield
    finally:
        found.uninstall()
        found.kubectl("delete", TUNING, "default", "--ignore-not-found", check=False)
        if not had_crds:
            for definition in (BROKER, TUNING, ARCHIVE):
                found.kubectl(
                    "delete", "crd", definition, "--ignore-not-found", "--timeout=60s", check=False
                )
        for namespace_name in (SYSTEM_NAMESPACE, TUNING_NAMESPACE):
            found.kubectl(
                "delete",
                "namespace",
                namespace_name,
                "--wait=false",
                "--ignore-not-found",
                check=False,
            )
