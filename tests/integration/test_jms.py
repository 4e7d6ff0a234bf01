"""JMS 2.0 and Jakarta Messaging 3.1 through stock Qpid JMS: the tests are Java's, in tests/jms."""

from __future__ import annotations

import re

import pytest

from vespiary_testkit.jms_tests import (
    PAGE,
    PROJECT,
    Result,
    java_tests,
    missing_tool,
    run_java_tests,
)

pytestmark = pytest.mark.jms


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    missing = missing_tool()
    if missing:
        pytest.skip(missing)
    return run_java_tests(tmp_path_factory.mktemp("jms"))


@pytest.mark.parametrize("name", java_tests())
def test_java(results: dict[str, Result], name: str) -> None:
    assert name in results, "Maven has not run it"
    if results[name].skipped is not None:
        pytest.skip(results[name].skipped or "skipped by its own")
    if results[name].failure:
        pytest.fail(results[name].failure, pytrace=False)


def test_every_java_test_is_known(results: dict[str, Result]) -> None:
    assert set(results) <= set(java_tests())


@pytest.mark.parametrize("module", ["jakarta", "javax"])
def test_the_page_names_the_versions_that_are_tested(module: str) -> None:
    text = (PROJECT / module / "pom.xml").read_text()
    (version,) = re.findall(r"qpid-jms-client</artifactId>\s*<version>([\d.]+)<", text)
    assert f"org.apache.qpid:qpid-jms-client:{version}" in PAGE.read_text()
