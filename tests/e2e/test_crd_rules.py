"""Every CEL rule on a real API server: it refuses what it should, in its words, and takes the rest.

The values just inside and just outside of every bound come from the model, so that a rule that is
generated wrongly is found; `crd_rule_examples` has the others. Nearly all is a dry run: only what
a rule of change needs as its old state is made, paused, in a namespace of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException

from vespiary_spec.limits import API_GROUP, API_VERSION
from vespiary_testkit.crd_rule_examples import all_cases, all_rules
from vespiary_testkit.crd_rules import Case, is_by, paused, rules_of
from vespiary_testkit.kubernetes_cluster import ARCHIVE, BROKER, TUNING, KubernetesCluster

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

PLURALS = {
    "Broker": "brokers",
    "BrokerNodeTuning": "brokernodetunings",
    "JournalArchive": "journalarchives",
}
REQUESTS_AT_ONCE = 4


class DryRuns:
    """Asks the API server what it would say, with unknown fields refused as kubectl has it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        client = kubernetes.config.new_client_from_config(os.environ["KUBECONFIG"])
        self._resources = kubernetes.client.CustomObjectsApi(client)

    def make(self, document: dict[str, Any], **options: Any) -> None:
        where = (API_GROUP, API_VERSION)
        plural = PLURALS[document["kind"]]
        options["field_validation"] = "Strict"
        if document["kind"] == "BrokerNodeTuning":
            self._resources.create_cluster_custom_object(*where, plural, document, **options)
        else:
            self._resources.create_namespaced_custom_object(
                *where, self._namespace, plural, document, **options
            )

    def change(self, document: dict[str, Any], name: str) -> None:
        self._resources.patch_namespaced_custom_object(
            *(API_GROUP, API_VERSION, self._namespace, PLURALS[document["kind"]], name),
            [{"op": "replace", "path": "/spec", "value": document["spec"]}],
            dry_run="All",
            field_validation="Strict",
            _content_type="application/json-patch+json",
        )

    def causes(self, case: Case, name: str) -> list[dict[str, Any]]:
        """Return for what the API server refuses a case; empty if it would take it."""
        try:
            if name:
                self.change(case.document, name)
            else:
                self.make(case.document, dry_run="All")
        except ApiException as refusal:
            status = json.loads(refusal.body or "{}")
            causes: list[dict[str, Any]] = (status.get("details") or {}).get("causes") or []
            return causes or [{"field": "?", "message": str(refusal)}]
        return []


@pytest.fixture
def dry_runs(cluster: KubernetesCluster, namespace: str) -> Iterator[DryRuns]:
    yield DryRuns(namespace)
    cluster.kubectl("-n", namespace, "delete", BROKER, "--all", "--wait=false")


def test_the_api_server_has_the_rules_of_this_tree(cluster: KubernetesCluster) -> None:
    served = [cluster.get("crd", name) for name in (BROKER, TUNING, ARCHIVE)]
    assert {rule for found in served if found for rule in rules_of(found)} == set(all_rules())


def test_every_rule_refuses_and_takes(dry_runs: DryRuns) -> None:
    cases = [paused(case) if case.rule.is_of_change else case for case in all_cases()]
    before = {
        json.dumps(case.before): f"kept-{number}"
        for number, case in enumerate(cases)
        if case.before is not None
    }
    made = [
        cases[0].document | {"kind": "Broker", "metadata": {"name": name}, "spec": json.loads(spec)}
        for spec, name in before.items()
    ]

    def causes(case: Case) -> list[dict[str, Any]]:
        return dry_runs.causes(case, before[json.dumps(case.before)] if case.before else "")

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        list(pool.map(dry_runs.make, made))
        answers = list(zip(cases, pool.map(causes, cases), strict=True))
    wrong = [
        f"{'taken' if case.is_refused else 'refused'} {json.dumps(case.document)}"
        f" after {json.dumps(case.before)}\n  by {case.rule}\n  {json.dumps(found)}"
        for case, found in answers
        if (not is_by(case.rule, found) if case.is_refused else found)
    ]
    assert not wrong, "\n".join((f"{len(wrong)} of {len(cases)} cases", *wrong[:20]))
    refusing = {case.rule for case, found in answers if is_by(case.rule, found)}
    taking = {case.rule for case, found in answers if not found}
    assert set(all_rules()) == refusing == taking, "each rule was seen to do both"
