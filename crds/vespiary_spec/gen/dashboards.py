"""The chart's Grafana dashboards: one table of panels each, and the JSON that Grafana reads.

Owns: which figures are shown together. A test compares every metric named here with those
that the broker and the operator have.
Never: talks to Grafana. Called by: `gen.__main__`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

GRAFANA_SCHEMA = 39
"""Version of the dashboard format: Grafana 10.4 writes it, and later ones read it."""

_COLUMNS = 24
_HEIGHT = 8


class Panel(NamedTuple):
    """One picture.

    Attributes:
        title: What it shows.
        unit: Grafana's name of the unit.
        queries: Query and legend of each line.
        kind: `timeseries`, `stat` or `table`.
        width: Of 24 columns.
        help: What to look for.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    help: str = ""


def _p99(metric: str, by: str) -> str:
    return (
        f"histogram_quantile(0.99, sum by ({by}, le) "
        f"(rate({metric}_bucket{{$selector}}[$__rate_interval])))"
    )


def _rate(metric: str) -> str:
    return f"rate({metric}{{$selector}}[$__rate_interval])"


def _now(metric: str) -> str:
    return f"{metric}{{$selector}}"


_POD = "{{namespace}}/{{pod}}"

BROKER_ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "State",
        (
            Panel("Ready", "short", ((_now("vespiary_ready"), _POD),), "stat", 6),
            Panel("Journal fenced", "short", ((_now("vespiary_journal_fenced"), _POD),), "stat", 6),
            Panel("Disk full", "short", ((_now("vespiary_journal_blocked"), _POD),), "stat", 6),
            Panel(
                "Other engine than asked for",
                "short",
                ((_now("vespiary_journal_engine_is_fallback"), _POD),),
                "stat",
                6,
            ),
        ),
    ),
    (
        "Messages",
        (
            Panel(
                "In and out",
                "ops",
                (
                    (_rate("vespiary_messages_in_total"), f"in {_POD}"),
                    (_rate("vespiary_messages_out_total"), f"out {_POD}"),
                    (_rate("vespiary_messages_acknowledged_total"), f"acknowledged {_POD}"),
                ),
            ),
            Panel(
                "Fullest queues",
                "short",
                ((f"topk(10, {_now('vespiary_queue_messages')})", "{{queue}} {{pod}}"),),
            ),
            Panel(
                "Not delivered",
                "ops",
                (
                    (_rate("vespiary_dead_letters_total"), f"dead letters {_POD}"),
                    (_rate("vespiary_dead_letters_dropped_total"), f"dropped {_POD}"),
                    (_rate("vespiary_messages_expired_total"), f"expired {_POD}"),
                ),
                help="Dropped ones are lost: set a dead letter address.",
            ),
            Panel(
                "Connections", "short", ((_now("vespiary_connections"), "{{protocol}} {{pod}}"),)
            ),
            Panel(
                "Producers that wait",
                "short",
                ((_now("vespiary_blocked_producers"), _POD),),
            ),
            Panel(
                "Prepared transactions",
                "short",
                (
                    (_now("vespiary_prepared_transactions"), f"in doubt {_POD}"),
                    (_now("vespiary_quarantined_transactions"), f"quarantined {_POD}"),
                ),
            ),
        ),
    ),
    (
        "Journal",
        (
            Panel(
                "Flush, p99",
                "s",
                ((_p99("vespiary_journal_flush_seconds", "namespace, pod"), _POD),),
                help="Every confirmed message waits for a flush.",
            ),
            Panel(
                "Records and writes",
                "ops",
                (
                    (_rate("vespiary_journal_records_total"), f"records {_POD}"),
                    (_rate("vespiary_journal_writes_total"), f"writes {_POD}"),
                ),
                help="Records over writes is the size of a group commit.",
            ),
            Panel(
                "AIO requests left on the node",
                "short",
                ((f"{_now('vespiary_aio_max_nr')} - {_now('vespiary_aio_nr')}", _POD),),
            ),
        ),
    ),
    (
        "Memory and pages",
        (
            Panel(
                "Messages in memory",
                "bytes",
                (
                    (_now("vespiary_memory_bytes"), _POD),
                    (_now("vespiary_memory_limit_bytes"), f"limit {_POD}"),
                ),
            ),
            Panel(
                "Room left on volumes",
                "percentunit",
                (
                    (
                        f"{_now('vespiary_volume_free_bytes')} / "
                        f"{_now('vespiary_volume_size_bytes')}",
                        f"{_POD} {{{{volume}}}}",
                    ),
                ),
                help="At 0.1 producers wait, unless max-disk-usage says otherwise.",
            ),
            Panel("Pages on disk", "bytes", ((_now("vespiary_paging_pages_bytes"), _POD),)),
            Panel(
                "Written to pages",
                "Bps",
                ((_rate("vespiary_paging_written_bytes_total"), _POD),),
            ),
        ),
    ),
)

_BROKER = "{{namespace}}/{{broker}}"

OPERATOR_ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Brokers",
        (
            Panel(
                "Not ready",
                "short",
                ((f'{_now("vespiary_operator_broker_condition")} {{condition="Ready"}}', _BROKER),),
                "stat",
                12,
                "1 is ready, 0 is not, -1 is not known.",
            ),
            Panel(
                "Degraded",
                "short",
                (
                    (
                        f'{_now("vespiary_operator_broker_condition")} {{condition="Degraded"}}',
                        _BROKER,
                    ),
                ),
                "stat",
                12,
            ),
        ),
    ),
    (
        "Passes",
        (
            Panel(
                "Passes by result",
                "ops",
                (
                    (
                        "sum by (kind, result) ("
                        + _rate("vespiary_operator_reconciles_total")
                        + ")",
                        "{{kind}} {{result}}",
                    ),
                ),
            ),
            Panel(
                "Duration, p99",
                "s",
                ((_p99("vespiary_operator_reconcile_seconds", "kind"), "{{kind}}"),),
            ),
            Panel("Waiting", "short", ((_now("vespiary_operator_queue_waiting"), "resources"),)),
        ),
    ),
    (
        "How old is what it knows",
        (
            Panel(
                "Oldest that waits",
                "s",
                ((_now("vespiary_operator_queue_oldest_seconds"), "resource"),),
                help="Or the longest pass, if one does not end.",
            ),
            Panel(
                "Since everything was listed",
                "s",
                ((_now("vespiary_operator_resync_age_seconds"), "list"),),
            ),
            Panel(
                "Since something was heard",
                "s",
                ((_now("vespiary_operator_watch_age_seconds"), "{{kind}}"),),
                help="An event or a list, once a minute; more than five minutes is a watch that "
                "hangs while lists fail.",
            ),
        ),
    ),
    (
        "API server",
        (
            Panel(
                "Requests by verb",
                "reqps",
                (
                    (
                        "sum by (verb) (" + _rate("vespiary_operator_api_requests_total") + ")",
                        "{{verb}}",
                    ),
                ),
            ),
            Panel(
                "Refused and unanswered",
                "reqps",
                (
                    (
                        "sum by (verb, resource, code) (rate(vespiary_operator_api_requests_total"
                        '{$selector, code!~"2..|404"}[$__rate_interval]))',
                        "{{code}} {{verb}} {{resource}}",
                    ),
                ),
                help="403: the operator's role is not the chart's.",
            ),
            Panel(
                "Changes by reason",
                "ops",
                (
                    (
                        "sum by (kind, reason) (" + _rate("vespiary_operator_changes_total") + ")",
                        "{{kind}} {{reason}}",
                    ),
                ),
            ),
        ),
    ),
)


def _query(text: str, selector: str) -> str:
    """Put the selector into a query; a second pair of braces is merged into the first."""
    return text.replace("$selector} {", "$selector, ").replace("$selector", selector)


def _panel(panel: Panel, number: int, x: int, y: int, selector: str) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": source,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": _query(text, selector),
                "legendFormat": legend,
            }
            for index, (text, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, metric: str, within: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({metric}{within}, {name})",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _dashboard(
    uid: str,
    title: str,
    rows: tuple[tuple[str, tuple[Panel, ...]], ...],
    selector: str,
    variables: list[dict[str, Any]],
) -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for name, row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": name,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        x = 0
        for panel in row:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            panels.append(_panel(panel, len(panels) + 1, x, y, selector))
            x += panel.width
        y += _HEIGHT
    source = {
        "name": "datasource",
        "type": "datasource",
        "label": "data source",
        "query": "prometheus",
        "current": {},
    }
    document = {
        "uid": uid,
        "title": title,
        "description": "Generated by `make gen` from vespiary_spec.gen.dashboards.",
        "tags": ["vespiary"],
        "schemaVersion": GRAFANA_SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def broker() -> str:
    """Return the dashboard of brokers, as they are scraped: by namespace and pod."""
    return _dashboard(
        "vespiary-broker",
        "Vespiary brokers",
        BROKER_ROWS,
        'namespace=~"$namespace", pod=~"$pod"',
        [
            _variable("namespace", "vespiary_ready"),
            _variable("pod", "vespiary_ready", '{namespace=~"$namespace"}'),
        ],
    )


def operator() -> str:
    """Return the dashboard of the operator."""
    return _dashboard(
        "vespiary-operator",
        "Vespiary operator",
        OPERATOR_ROWS,
        'job=~"$job"',
        [_variable("job", "vespiary_operator_queue_waiting")],
    )
