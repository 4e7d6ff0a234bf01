"""docs/howto/failure-modes.md names nothing that the code does not have."""

from __future__ import annotations

import re
from pathlib import Path

from vespiary_operator.metrics import Metrics
from vespiary_spec.status import ConditionStatus, ConditionType

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "howto" / "failure-modes.md").read_text("utf-8")


def flat(text: str) -> str:
    """Return source text with its string literals joined, as they are when they are said."""
    return re.sub(r'"\s*\n\s*f?"', "", text)


CODE = "\n".join(
    flat(path.read_text("utf-8"))
    for folder in ("operator/vespiary_operator", "crds/vespiary_spec")
    for path in sorted((ROOT / folder).rglob("*.py"))
)


def test_every_condition_and_reason_exists() -> None:
    found = re.findall(r"`(\w+)=(\w+) (\w+)`", PAGE)
    assert len(found) > 15
    for kind, state, reason in found:
        assert kind in {member.value for member in ConditionType}, kind
        assert state in {member.value for member in ConditionStatus}, state
        assert re.search(rf'"{reason}"', CODE), f"no code gives the reason {reason}"


def test_every_alert_metric_and_event_exists() -> None:
    rules = (ROOT / "charts" / "vespiary" / "monitoring" / "rules.yaml").read_text("utf-8")
    alerts = set(re.findall(r"`(Vespiary[A-Z]\w+)`", PAGE))
    assert len(alerts) > 6
    for alert in alerts:
        assert f"alert: {alert}\n" in rules, alert
    families = Metrics().text().decode()
    for metric in re.findall(r"`(vespiary_operator_\w+)`", PAGE):
        assert f"# HELP {metric} " in families, metric
    for event in ("Restored", "Created"):
        assert f"`{event}`" in PAGE
        assert f'"{event}"' in CODE


def test_every_quoted_sentence_is_said() -> None:
    quoted = re.findall(r'"([^"\n]{8,}?)"', PAGE)
    assert len(quoted) >= 5
    for sentence in quoted:
        assert sentence in CODE, sentence


def test_every_test_that_it_names_is_there() -> None:
    for path in re.findall(r"`(tests/[\w/.]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
