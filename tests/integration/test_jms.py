"""JMS 2.0 and Jakarta Messaging 3.1 through stock Qpid JMS: the tests are Java's, in tests/jms."""

from __future__ import annotations

import re

import pytest

from vespiary_testkit.jms_tests import (
    MODULES,
    PAGE,
    PROJECT,
    Result,
    java_tests,
    missing_tool,
    run_java_tests,
)

pytestmark = pytest.mark.jms


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """Run the tests of the modules that this session has tests of."""
    missing = missing_tool()
    if missing:
        pytest.skip(missing)
    cases = [item.name.partition("[")[2] for item in request.session.items]
    modules = [name for name in MODULES if any(case.startswith(f"{name}.") for case in cases)]
    return run_java_tests(tmp_path_factory.mktemp("jms"), modules or list(MODULES))


def _case(name: str) -> object:
    is_javax = name.startswith("javax.")
    return pytest.param(name, marks=pytest.mark.verify) if is_javax else name


@pytest.mark.parametrize("name", [_case(name) for name in java_tests()])
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
