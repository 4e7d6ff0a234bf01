"""What conditions say about an upgrade, a pause, and a newer operator's template.

Owns: UpToDate, Paused, and the part that a halted upgrade has in Degraded.
Never: decides what is done. Called by: `status`.
"""

from __future__ import annotations

from vespiary_operator import maintenance, upgrade_refusal
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding
from vespiary_operator.metrics import TEMPLATE_PENDING
from vespiary_operator.plan import Plan
from vespiary_spec.resources import Broker
from vespiary_spec.upgrade_status import UpgradeStage as Stage


def up_to_date(plan: Plan, *, is_complete: bool) -> Finding:
    """Return whether every broker runs the version and the template that were asked for."""
    upgrade = plan.upgrade
    if upgrade is not None and upgrade.stage is not Stage.COMPLETE:
        reason = upgrade.reason or upgrade.stage.value
        return FALSE, reason, upgrade_refusal.sentence(upgrade)
    if is_complete and plan.is_template_pending:
        return (
            TRUE,
            TEMPLATE_PENDING,
            f"All brokers run {plan.image}. This operator would write another template for their "
            "pods; they get it with the next change of this Broker, or with "
            "spec.upgrade.adoptOperatorTemplate: Always.",
        )
    if is_complete:
        return TRUE, "UpToDate", f"All brokers run {plan.image}."
    if plan.rollout is None or plan.rollout.is_complete:
        return UNKNOWN, "NotStarted", "The brokers have yet to be made."
    return FALSE, "RollingOut", plan.rollout.reason


def halted(plan: Plan) -> Finding | None:
    """Return what Degraded says about an upgrade that stands still; None if none does."""
    upgrade = plan.upgrade
    if upgrade is None or upgrade.stage is not Stage.HALTED:
        return None
    return TRUE, "UpgradeHalted", upgrade.message


def paused(broker: Broker) -> Finding:
    """Return whether somebody asked to change nothing."""
    by = maintenance.paused_by(broker)
    if not by:
        return FALSE, "NotAsked", "The operator looks after this Broker."
    return TRUE, "Asked", f"Nothing is changed while {by} is true; the status is reported."
