"""Alerts fire when they should and not otherwise, and name metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from vespiary_operator.api_requests import ApiRequest
from vespiary_operator.metrics import Metrics
from vespiary_operator.work import Backlog
from vespiary_testkit.go_tools import NoTool, tool

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "charts" / "vespiary" / "monitoring"
RULES = MONITORING / "rules.yaml"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
SUFFIXES = ("_bucket", "_sum", "_count")


class Case(NamedTuple):
    """What makes an alert fire, and what does not: values of a series, minute by minute."""

    series: dict[str, str]
    quiet: dict[str, str]
    at: str


def one(series: str, fires: str, quiet: str, at: str) -> Case:
    return Case({series: fires}, {series: quiet}, at)


POD = 'namespace="ns",pod="orders-0"'
BROKER = 'namespace="ns",broker="orders"'
ARCHIVE = "vespiary_operator_archive_last_run"
LABELS = '{namespace="ns",archive="weekly"}'


def _series(condition: str) -> str:
    return f'vespiary_operator_broker_condition{{{BROKER},condition="{condition}"}}'


def _condition(name: str, fires: int, at: str) -> Case:
    return one(_series(name), f"{fires}x60", f"{1 - fires}x60", at)


def _volume(what: str, volume: str = "journal") -> str:
    return f'vespiary_volume_{what}{{{POD},volume="{volume}"}}'


def _histogram(name: str, labels: str, bound: str, slow: str) -> Case:
    """All observations under `bound`, or all of them above it."""
    few, many = f'{name}_bucket{{{labels},le="{bound}"}}', f'{name}_bucket{{{labels},le="{slow}"}}'
    total = f'{name}_bucket{{{labels},le="+Inf"}}'
    return Case(
        {few: "0x60", many: "0+60x60", total: "0+60x60"},
        {few: "0+60x60", many: "0+60x60", total: "0+60x60"},
        "40m",
    )


CASES = {
    "VespiaryBrokerNotReady": one(f"vespiary_ready{{{POD}}}", "0x20", "1x20", "6m"),
    "VespiaryJournalFenced": one(f"vespiary_journal_fenced{{{POD}}}", "1x20", "0x20", "1m"),
    "VespiaryJournalBlocked": one(f"vespiary_journal_blocked{{{POD}}}", "1x20", "0x20", "2m"),
    "VespiaryVolumeNearlyFull": Case(
        {_volume("free_bytes"): "14x20", _volume("size_bytes"): "100x20"},
        {_volume("free_bytes"): "15x20", _volume("size_bytes"): "100x20"},
        "6m",
    ),
    "VespiaryVolumeFillsUp": Case(
        {_volume("free_bytes"): "1200-4x240", _volume("size_bytes"): "2000x240"},
        {_volume("free_bytes"): "1200-1x240", _volume("size_bytes"): "2000x240"},
        "150m",
    ),
    "VespiaryVolumeInodesNearlyUsedUp": Case(
        {
            _volume("free_inodes"): "49x20",
            _volume("inodes"): "1000x20",
            _volume("free_inodes", "paging"): "0x20",
            _volume("inodes", "paging"): "0x20",
        },
        {_volume("free_inodes"): "50x20", _volume("inodes"): "1000x20"},
        "6m",
    ),
    "VespiaryConfigurationRefused": one(
        f"vespiary_configuration_refused{{{POD}}}", "1x20", "0x20", "6m"
    ),
    "VespiaryCertificateEndsSoon": one(
        f'vespiary_certificate_expires_in_seconds{{{POD},acceptor="all"}}',
        "604799-60x20",
        "700000-60x20",
        "6m",
    ),
    "VespiaryMemoryFull": one(f"vespiary_memory_full{{{POD}}}", "1x20", "0x20", "11m"),
    "VespiaryJournalEngineFallback": one(
        f"vespiary_journal_engine_is_fallback{{{POD}}}", "1x20", "0x20", "6m"
    ),
    "VespiaryJournalFlushSlow": _histogram("vespiary_journal_flush_seconds", POD, "0.01", "0.5"),
    "VespiaryAioNearlyUsedUp": Case(
        {f"vespiary_aio_max_nr{{{POD}}}": "65536x20", f"vespiary_aio_nr{{{POD}}}": "65000x20"},
        {f"vespiary_aio_max_nr{{{POD}}}": "65536x20", f"vespiary_aio_nr{{{POD}}}": "64536x20"},
        "6m",
    ),
    "VespiaryMessagesDamaged": one(f"vespiary_paging_damaged{{{POD}}}", "1x20", "0x20", "1m"),
    "VespiaryRetentionBlocked": one(f"vespiary_retention_blocked{{{POD}}}", "1x20", "0x20", "6m"),
    "VespiaryTransactionInDoubt": one(
        f"vespiary_oldest_prepared_transaction_seconds{{{POD}}}", "3601x20", "3600x20", "1m"
    ),
    "VespiaryTransactionQuarantined": one(
        f"vespiary_quarantined_transactions{{{POD}}}", "1x20", "0x20", "1m"
    ),
    "VespiaryQueueWithoutConsumers": Case(
        {
            f'vespiary_queue_messages{{{POD},queue="q"}}': "0+10x80",
            f'vespiary_queue_consumers{{{POD},queue="q"}}': "0x80",
        },
        {
            f'vespiary_queue_messages{{{POD},queue="q"}}': "500x80",
            f'vespiary_queue_consumers{{{POD},queue="q"}}': "0x80",
        },
        "65m",
    ),
    "VespiaryDeadLettersDropped": one(
        f"vespiary_dead_letters_dropped_total{{{POD}}}", "0+1x20", "7x20", "10m"
    ),
    "VespiaryOperatorAbsent": Case(
        {'vespiary_operator_leader{pod="standby"}': "0x20"},
        {'vespiary_operator_leader{pod="standby"}': "0x20", "vespiary_operator_leader": "1x20"},
        "11m",
    ),
    "VespiaryBrokerNotAvailable": _condition("Available", 0, "6m"),
    "VespiaryBrokerDegraded": _condition("Degraded", 1, "11m"),
    "VespiaryStorageRefused": _condition("StorageVerified", 0, "3m"),
    "VespiaryVolumesNotSized": Case(
        {_series("VolumesSized"): "0x80"}, {_series("VolumesSized"): "0x50 1x30"}, "65m"
    ),
    "VespiaryCertificateInvalid": _condition("CertificateValid", 0, "3m"),
    "VespiaryNodeNotTuned": _condition("NodeTuned", 0, "11m"),
    "VespiaryConfigurationNotApplied": Case(
        {_series("ConfigApplied"): "0x80"}, {_series("ConfigApplied"): "0x50 1x30"}, "65m"
    ),
    "VespiaryUpgradeFailed": Case(
        {f'vespiary_operator_broker_upgrade{{{BROKER},stage="RolledBack"}}': "1x20"},
        {f'vespiary_operator_broker_upgrade{{{BROKER},stage="Complete"}}': "1x20"},
        "1m",
    ),
    "VespiaryDrainStuck": _condition("Draining", 1, "31m"),
    "VespiaryArchiveDamageFound": one(f"{ARCHIVE}_damages{LABELS}", "2x20", "0x20", "1m"),
    "VespiaryArchiveRunFailed": Case(
        {f"{ARCHIVE}{LABELS}": "0x20", f"{ARCHIVE}_damages{LABELS}": "0x20"},
        {f"{ARCHIVE}{LABELS}": "0x20", f"{ARCHIVE}_damages{LABELS}": "2x20"},
        "6m",
    ),
    "VespiaryOperatorWatchStale": one(
        'vespiary_operator_watch_age_seconds{kind="Pod"}', "301+60x20", "60x20", "6m"
    ),
    "VespiaryOperatorKeyStuck": one(
        "vespiary_operator_queue_oldest_seconds", "601+60x20", "600x20", "6m"
    ),
    "VespiaryOperatorFailing": one(
        'vespiary_operator_reconciles_total{kind="Broker",result="failed"}', "0+2x40", "5x40", "30m"
    ),
    "VespiaryOperatorCrashed": one(
        'vespiary_operator_reconciles_total{kind="Broker",result="crashed"}', "0+1x9", "1x20", "9m"
    ),
    "VespiaryOperatorForbidden": one(
        'vespiary_operator_api_requests_total{verb="list",resource="pods",subresource="",code="403"}',
        "0+1x20",
        "3x20",
        "10m",
    ),
    "VespiaryOperatorSlow": _histogram(
        "vespiary_operator_reconcile_seconds", 'kind="Broker"', "3", "30"
    ),
    "VespiaryOperatorBacklog": one("vespiary_operator_queue_waiting", "21x30", "20x30", "16m"),
}


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def known_metrics() -> set[str]:
    """Metrics of the broker, as its page lists them (a test compares), and the operator's own."""
    page = (ROOT / "docs/howto/metrics.md").read_text("utf-8")
    found = set(re.findall(r"^\| `(vespiary_\w+)`", page, re.MULTILINE))
    metrics = Metrics()
    metrics.freshness.watch_queue(lambda: Backlog(0, 0.0))
    metrics.asked(ApiRequest("get", "pods"), 200)
    for family in text_string_to_metric_families(metrics.text().decode()):
        found.add(family.name + ("_total" if family.type == "counter" else ""))
    return found


def metrics_of(query: str) -> set[str]:
    names = set(re.findall(r"\bvespiary_\w+", query))
    known = known_metrics()
    return {
        next((n[: -len(s)] for s in SUFFIXES if n.endswith(s) and n not in known), n) for n in names
    }


def test_every_metric_of_the_rules_exists() -> None:
    for rule in alerts():
        assert metrics_of(rule["expr"]) <= known_metrics(), rule["alert"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_metric_of_the_dashboards_exists(path: Path) -> None:
    document = json.loads(path.read_text("utf-8"))
    queries = [t["expr"] for panel in document["panels"] for t in panel.get("targets", ())]
    assert len(queries) >= 8
    for query in queries:
        named = metrics_of(query)
        assert named, query
        assert named <= known_metrics(), query
        assert "$selector" not in query
    for variable in document["templating"]["list"]:
        assert metrics_of(variable["query"]) <= known_metrics()
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_there_are_two_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == ["broker", "operator"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    found = alerts()
    assert {rule["alert"] for rule in found} == set(CASES), "each alert has a case"
    for rule in found:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert len(rule["annotations"]["description"]) > 30


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        program = tool("promtool")
    except NoTool as reason:
        pytest.skip(str(reason))
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


def _test(series: dict[str, str], at: str, alert: str, count: int) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": at,
        "exp_samples": [{"labels": "{}", "value": count}] if count else [],
    }
    return {
        "interval": "1m",
        "name": f"{alert} {'fires' if count else 'is quiet'}",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [asked],
    }


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    tests = []
    for alert, case in CASES.items():
        tests.append(_test(case.series, case.at, alert, 1))
        tests.append(_test(case.quiet, case.at, alert, 0))
    (text,) = (r["annotations"] for r in alerts() if r["alert"] == "VespiaryBrokerDegraded")
    said = {
        name: value.replace("{{ $labels.namespace }}", "ns").replace(
            "{{ $labels.broker }}", "orders"
        )
        for name, value in text.items()
    }
    labels = {"namespace": "ns", "broker": "orders", "condition": "Degraded", "severity": "warning"}
    degraded = _test(CASES["VespiaryBrokerDegraded"].series, "11m", "VespiaryBrokerDegraded", 1)
    degraded["name"] = "the sentences have the names in them"
    degraded["alert_rule_test"] = [
        {
            "eval_time": "11m",
            "alertname": "VespiaryBrokerDegraded",
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": said}],
        }
    ]
    path = tmp_path / "rules_test.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    path.write_text(yaml.safe_dump({**document, "tests": [*tests, degraded]}))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
