"""The core tests share one JVM: none of them, and nothing that they start, finds a Java."""

from __future__ import annotations

import pytest

from vespiary_pipeline.session import check_java
from vespiary_spec.errors import SparkUnusable

pytestmark = pytest.mark.spark


def test_a_core_test_finds_no_java() -> None:
    with pytest.raises(SparkUnusable, match="there is none"):
        check_java()


@pytest.mark.verify
def test_other_tests_do() -> None:
    check_java()
