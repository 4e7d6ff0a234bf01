"""The rights of the operator are those that it uses: none is missing, and none is too many.

Runs last, by its name: it looks at what the operators of the whole session asked for, and of the
one before it, in which several tests ran at once.
"""

from __future__ import annotations

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, wait_for
from vespiary_testkit.operator_rights import OperatorRights

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]


def test_nothing_was_refused(cluster: KubernetesCluster, rights: OperatorRights) -> None:
    assert cluster
    wait_for("metrics of an operator were read", lambda: rights.pages, 60)
    assert ("list", "brokers") in {(asked.verb, asked.resource) for asked in rights.asked}
    assert not rights.refused(), sorted(rights.refused())


def test_no_right_is_unused(
    cluster: KubernetesCluster, rights: OperatorRights, unseen_tests: set[str]
) -> None:
    if unseen_tests:
        pytest.skip(f"not every e2e test was run: {', '.join(sorted(unseen_tests))}")
    listed = cluster.kubectl("api-resources", "--no-headers", "-o", "name", check=False).stdout
    served = {name if "." in name else f"{name}." for name in listed.split()}
    assert not rights.unused(served)
