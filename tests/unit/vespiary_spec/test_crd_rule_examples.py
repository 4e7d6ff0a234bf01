"""Every CEL rule has an example that it refuses and one that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_spec.model import Facts
from vespiary_spec.resources import BrokerNodeTuningSpec, BrokerSpec
from vespiary_spec.settings import DEFAULT_ACCEPTORS
from vespiary_testkit.crd_rule_examples import (
    FIELDS,
    PARTS,
    RESOURCES,
    all_rules,
    examples_of,
)
from vespiary_testkit.crd_rules import (
    Examples,
    Rule,
    bounded_fields,
    cases_of,
    spec_with,
)


@pytest.mark.parametrize("rule", all_rules(), ids=str)
def test_a_rule_has_both(rule: Rule) -> None:
    examples = examples_of(rule)
    assert examples is not None, f"give it examples in crd_rule_examples: {rule}"
    cases = list(cases_of(rule, examples))
    assert [c for c in cases if c.is_refused], "nothing that it refuses"
    assert [c for c in cases if not c.is_refused], "nothing that it takes"


def test_no_rule_has_another_ones_place() -> None:
    found = [(rule.kind, rule.path, rule.message) for rule in all_rules()]
    assert len(found) == len(set(found)), "two rules at one place cannot be told apart"
    assert len(found) > 150


def test_no_example_is_of_a_rule_that_is_gone() -> None:
    shown = [id(examples_of(rule)) for rule in all_rules()]
    gone = [
        key
        for table in (RESOURCES, PARTS, FIELDS)
        for key, examples in table.items()
        if id(examples) not in shown
    ]
    assert not gone


def test_what_has_to_stand_around_an_example_does() -> None:
    assert spec_with(".spec.acceptors[].stomp.maxBodySize", 5) == {
        "acceptors": [{"name": "a", "port": 7000, "stomp": {"maxBodySize": 5}}]
    }
    assert spec_with(".spec.extraVolumes[]", {"name": "a"}) == {
        "extraVolumes": [{"name": "a"}],
        "extraVolumeMounts": [{"name": "a", "mountPath": "/mnt/a"}],
    }
    assert spec_with(".spec.upgrade.soakTime", "1s") == {"upgrade": {"soakTime": "1s"}}
    assert spec_with(".spec", {"replicas": 2}) == {"replicas": 2}


def test_bounds_are_tried_on_both_sides() -> None:
    rules = {f"{rule.path}": rule for rule in all_rules() if rule.message.startswith("allowed")}
    found = examples_of(rules[".spec.config.journalFileSize"])
    assert found is not None
    assert {65536, "64Ki", 2**32, "4Gi"} <= set(found.taken)
    assert {65535, 61440, 2**32 + 1, 2**32 + 4096, 65536 + 4097} <= set(found.refused)
    found = examples_of(rules[".spec.config.messageExpiryScanPeriod"])
    assert found == Examples(
        refused=(-2, 3600001, "3600001ms"), taken=(-1, 0, "0ms", 3600000, "3600000ms")
    )


def test_no_bound_is_below_zero() -> None:
    """Text with a unit has no sign: what a negative number means is special, not a bound."""
    specs = (BrokerSpec, BrokerNodeTuningSpec)
    below = [place for spec in specs for place, facts in bounded_fields(spec) if is_below(facts)]
    assert not below


def is_below(facts: Facts) -> bool:
    return any(bound is not None and bound < 0 for bound in (facts.minimum, facts.maximum))


def test_what_names_no_acceptor_is_not_the_name_of_a_default_one() -> None:
    default = {acceptor.name for acceptor in DEFAULT_ACCEPTORS}
    refused = [
        *PARTS["a port of the Service has a name that no acceptor has"].refused,
        *PARTS["tlsRoute.acceptor names no acceptor"].refused,
    ]
    assert not [spec for spec in refused if "acceptors" not in spec and names_of(spec) & default]


def names_of(spec: dict[str, Any]) -> set[str]:
    ports = spec.get("service", {}).get("ports", ())
    return {port["name"] for port in ports} | {spec.get("tlsRoute", {}).get("acceptor")}
