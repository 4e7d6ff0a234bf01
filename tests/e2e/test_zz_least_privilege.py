"""The operator has the rights that it uses: none is missing, and none is too many.

These tests run last, by the module's name: they look at what the operators asked for in the whole
session, and in the one before it, in which several tests ran at once (`VESPIARY_E2E_RECORD`).
"""

from __future__ import annotations

import os

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster
from vespiary_testkit.operator_rights import OperatorRights

pytestmark = [pytest.mark.e2e, pytest.mark.alone]


BROKER_CHILDREN = {"statefulsets", "services", "configmaps", "secrets", "serviceaccounts"}
"""The operator makes these for every Broker."""


def test_nothing_was_refused_and_all_was_granted(rights: OperatorRights) -> None:
    pages = rights.pages
    rights.read_now()
    assert rights.pages > pages, "no operator showed its metrics"
    assert rights.made() >= BROKER_CHILDREN, "no test made a Broker, so there is nothing to judge"
    assert not rights.refused(), sorted(rights.refused())
    assert not rights.ungranted(), sorted(rights.ungranted())


@pytest.mark.verify
def test_no_right_is_unused(
    cluster: KubernetesCluster, rights: OperatorRights, unseen_tests: set[str]
) -> None:
    missing = f"not every e2e test was run: {', '.join(sorted(unseen_tests))}"
    if unseen_tests and "VESPIARY_E2E_RECORD" not in os.environ:
        pytest.skip(missing)
    assert not unseen_tests, missing
    listed = cluster.kubectl("api-resources", "--no-headers", "-o", "name", check=False).stdout
    served = {name if "." in name else f"{name}." for name in listed.split()}
    assert not rights.unused(served)
