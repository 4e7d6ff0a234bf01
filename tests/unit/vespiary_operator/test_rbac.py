"""The chart's roles are the table's."""

from __future__ import annotations

import re

import yaml

from vespiary_operator import kinds, rbac


def test_every_rule_of_the_table_is_in_the_chart_with_its_reason() -> None:
    text = rbac.chart_template()
    for rule in rbac.RULES:
        assert f"  # {rule.reason}\n" in text
        assert f"resources: [{rule.resource}]" in text


def test_every_rule_is_on_the_page_of_rights() -> None:
    page = rbac.rights_page()
    for rule in rbac.RULES:
        assert f"| `{rule.resource}` |" in page
        assert rule.reason in page
    assert page.count("\n| `") == len(rbac.RULES)


def test_nothing_may_do_everything() -> None:
    assert "*" not in {verb for rule in rbac.RULES for verb in rule.verbs}
    assert not rbac.is_allowed("delete", kinds.CLAIM)
    assert not rbac.is_allowed("delete", kinds.BROKER)
    assert not rbac.is_allowed("update", kinds.BROKER)
    assert not rbac.is_allowed("update", kinds.POD)


def test_the_template_is_yaml_once_helm_has_gone_over_it() -> None:
    text = rbac.chart_template()
    text = re.sub(r"^\{\{-? (?:/\*|if|else|end|range).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"labels: \{\{.*$", "labels:", text, flags=re.MULTILINE)
    text = re.sub(r"\{\{[^}]*\}\}", "x", text)
    documents = [d for d in yaml.safe_load_all(text) if d]
    assert [d["kind"] for d in documents] == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRole",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRole",
        "Role",
        "RoleBinding",
        "Role",
        "Role",
        "RoleBinding",
    ]
    namespaced = documents[7]["rules"]
    assert {r for rule in namespaced for r in rule["resources"]}.isdisjoint(
        {"nodes", "persistentvolumes", "storageclasses", "daemonsets", "brokernodetunings"}
    )
