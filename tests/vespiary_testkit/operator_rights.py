"""What the operator asked of the API server during a whole run of the e2e tests.

Owns: the sum over all operator pods that there were, read from their `/metrics` every two seconds
through the API server, and the file by which a session tells it to the next one. What a process did
in its last moments before a kill may be missed.
Never: counts requests of the tests themselves. Called by: tests/e2e/conftest.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from vespiary_operator import kinds, rbac

PAUSE_S = 2.0
REPLACED_S = 120.0
"""Within it an operator is gone that is replaced, or its installation was left as it was."""
READ_S = 60.0
"""So long an operator that is ready may take to show what it asked for, before it is replaced."""
OPERATORS = "app.kubernetes.io/name=vespiary,app.kubernetes.io/component=operator"


_CREATED = {("create", "201"), ("patch", "201")}
"""A patch that made an object needed the right to create it."""


class Asked(NamedTuple):
    """One kind of request with its outcome, as the metric has it."""

    verb: str
    resource: str
    subresource: str
    code: str
    reason: str


def of_page(text: str) -> set[Asked]:
    """Return the requests that a page of metrics tells of."""
    return {
        Asked(*(sample.labels[name] for name in Asked._fields))
        for family in text_string_to_metric_families(text)
        if family.name == "vespiary_operator_api_requests"
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value > 0
    }


class OperatorRights:
    """Collects in a thread of its own; owned by the test session.

    Attributes:
        asked: Everything that was asked.
        pages: How many pages of metrics were read.
        tests: Ids of the tests that this was for.
    """

    def __init__(self, chart_version: str) -> None:
        self.asked: set[Asked] = set()
        self.pages = 0
        self.tests: set[str] = set()
        self._chart = f"vespiary-{chart_version}"
        self._stop = threading.Event()
        self._leaving: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="operator-rights", daemon=True)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[OperatorRights]:
        """Collect as long as the context lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(30)

    @contextlib.contextmanager
    def recorded(self, record: Path | None, *, continues: bool) -> Iterator[None]:
        """Add what the session before recorded, or record this one for the session that follows.

        Args:
            record: The file; with None nothing is recorded.
            continues: Whether to read the file, which stays as it is, instead of writing it. A file
                that is left from an earlier run is removed at once, so that a session that does not
                get to its end leaves none.
        """
        if record is None:
            yield
        elif continues:
            if record.is_file():
                self._recall(record)
            yield
        else:
            record.unlink(missing_ok=True)
            yield
            self._keep(record)

    def _keep(self, record: Path) -> None:
        seen = {"asked": sorted(self.asked), "pages": self.pages, "tests": sorted(self.tests)}
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(seen), "utf-8")

    def _recall(self, record: Path) -> None:
        seen = json.loads(record.read_text("utf-8"))
        self.asked |= {Asked(*each) for each in seen["asked"]}
        self.pages += seen["pages"]
        self.tests |= set(seen["tests"])

    def refused(self) -> set[Asked]:
        """Return what the operator was not allowed to do.

        A namespace on its way out takes no new objects, which is no matter of rights.
        """
        return {a for a in self.asked if a.code == "403" and a.reason != "NamespaceTerminating"}

    def ungranted(self) -> set[Asked]:
        """Return what the operator was allowed to do although the table has no such right."""
        table = {(v, rule.kind.plural, rule.subresource) for rule in rbac.RULES for v in rule.verbs}
        return {
            a
            for a in self.asked
            if a.code[:1] == "2" and (a.verb, a.resource, a.subresource) not in table
        }

    def made(self) -> set[str]:
        """Return the resources of which the operator made objects."""
        return {
            a.resource for a in self.asked if (a.verb, a.code) in _CREATED and not a.subresource
        }

    def unused(self, served: set[str]) -> list[str]:
        """Return the rights that nothing used.

        Args:
            served: `plural.group` of what the cluster serves; a right for anything else is
                excused, as OpenShift's are on another Kubernetes.
        """
        used = {(a.verb, a.resource, a.subresource) for a in self.asked if a.code[:1] == "2"}
        used |= {("create", resource, "") for resource in self.made()}
        # kopf's own watches: without one of them the operator does not get ready.
        watched = (kinds.BROKER, kinds.NODE_TUNING, kinds.JOURNAL_ARCHIVE, kinds.NODE)
        watched = (*watched, *kinds.WATCHED_CHILDREN)
        used |= {(verb, kind.plural, "") for kind in watched for verb in ("list", "watch")}
        return [
            f"{verb} {rule.resource}.{rule.kind.group} ({rule.reason})"
            for rule in rbac.RULES
            if f"{rule.kind.plural}.{rule.kind.group}" in served
            for verb in rule.verbs
            if (verb, rule.kind.plural, rule.subresource) not in used
        ]

    def read_now(self) -> None:
        """Read what the operators that run now have asked for; before they are replaced.

        What they are refused from now on does not count: their rights may be gone before they are.
        """
        client = kubernetes.config.new_client_from_config(os.environ.get("KUBECONFIG"))
        core = kubernetes.client.CoreV1Api(client)
        deadline = time.monotonic() + READ_S
        while not self._read_all(core, is_last=True) and time.monotonic() < deadline:
            time.sleep(0.5)

    def _run(self) -> None:
        # The client's default is what KUBECONFIG was when the module was loaded, before `cluster`.
        client = kubernetes.config.new_client_from_config(os.environ.get("KUBECONFIG"))
        core = kubernetes.client.CoreV1Api(client)
        while not self._stop.wait(PAUSE_S):
            self._read_all(core)

    def _read_all(self, core: kubernetes.client.CoreV1Api, *, is_last: bool = False) -> bool:
        """Read every operator's page; return whether each that is ready had one."""
        try:
            found = core.list_pod_for_all_namespaces(
                label_selector=OPERATORS, _request_timeout=10
            ).items
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError):
            return False
        is_whole = True
        for pod in found:
            if pod.metadata.labels.get("helm.sh/chart") not in (self._chart, None):
                continue
            is_read = self._read(core, pod, is_last=is_last)
            is_ready = any(
                c.type == "Ready" for c in pod.status.conditions or () if c.status == "True"
            )
            is_whole = is_whole and (is_read or not is_ready)
        return is_whole

    def _read(self, core: kubernetes.client.CoreV1Api, pod: Any, *, is_last: bool) -> bool:
        """Read one page; a pod that is not up yet, or no longer, has none."""
        metadata = pod.metadata
        try:
            page = core.connect_get_namespaced_pod_proxy_with_path(
                f"{metadata.name}:8080",
                metadata.namespace,
                "metrics",
                _preload_content=False,
                _request_timeout=5,
            ).data
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError):
            return False
        self.note(metadata.uid, page.decode(), is_last=is_last)
        return True

    def note(self, operator: str, page: str, *, is_last: bool = False) -> None:
        """Add a page of metrics.

        Args:
            operator: Whose it is: the UID of its pod.
            page: The page.
            is_last: Whether the operator is to be replaced now.
        """
        now = time.monotonic()
        asked = of_page(page)
        if now - self._leaving.get(operator, -REPLACED_S) < REPLACED_S:
            asked = {one for one in asked if one.code != "403"}
        self.asked |= asked
        self.pages += 1
        if is_last:
            self._leaving[operator] = now
