"""From what was observed to what is done about it, and why: no more than a function.

Owns: the order in which things are done, and when nothing may be done. What is done about each
kind of object stands in `children`, `claims` and `workload`.
Never: reads the cluster, the clock or randomness; decides about the status (that is `status`).
Called by: `reconciler`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vespiary_operator import (
    adoption,
    children,
    claim_attributes,
    claims,
    draining,
    kinds,
    live_files,
    maintenance,
    names,
    own_restarts,
    replacement,
    resize_restarts,
    scaling,
    storage_preflight,
    templates,
    waking,
    workload,
)
from vespiary_operator.actions import Action, Block
from vespiary_operator.builders import settings_map
from vespiary_operator.claims import ClaimSize
from vespiary_operator.draining import DrainStep
from vespiary_operator.observation import Observed
from vespiary_operator.options import Options
from vespiary_operator.rollout import Rollout
from vespiary_operator.storage_checks import Declared
from vespiary_spec.errors import ConfigError
from vespiary_spec.status import Operation
from vespiary_spec.upgrade_status import UpgradeStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is done, and why.

    Attributes:
        actions: In this order.
        reason: One sentence.
        image: Image of the pods.
        block: Why pods are not made or changed; None if nothing stands in the way.
        rollout: Where a change of the pods stands; None without a StatefulSet.
        declared: What storage classes and PersistentVolumes say.
        warnings: Sentences about what is not done as asked, such as a claim that cannot grow.
        drain: Where brokers that leave stand; None if nothing is done about them.
        sizes: The claims, and how large they should be.
        operation: What goes on over several passes; None if nothing does.
        upgrade: Where an upgrade stands; None where there was none.
        is_template_pending: Whether a newer operator's template waits for a change by the user.
    """

    actions: tuple[Action, ...]
    reason: str
    image: str
    block: Block | None = None
    rollout: Rollout | None = None
    declared: tuple[Declared, ...] = ()
    warnings: tuple[str, ...] = ()
    drain: DrainStep | None = None
    sizes: tuple[ClaimSize, ...] = ()
    operation: Operation | None = None
    upgrade: UpgradeStatus | None = None
    is_template_pending: bool = False


def plan(observed: Observed, options: Options) -> Plan:
    """Decide what to do about a Broker.

    Args:
        observed: What was found.
        options: Images and the like.

    Returns:
        The same plan for the same input, always. When everything is as wanted, it has no actions.
    """
    found = _plan(observed, options)
    broker = observed.broker
    paused_by = maintenance.paused_by(broker)
    if found.block is not None or paused_by:
        # Pods stay as they are, and an upgrade where it stands.
        live = observed.child(kinds.STATEFUL_SET, names.stateful_set(broker.metadata.name))
        kept = None if live is None else templates.kept(live)
        image = found.image if kept is None else kept.image
        found = dataclasses.replace(found, image=image, upgrade=broker.status.upgrade)
    if paused_by:
        rollout = found.rollout
        if rollout is not None and not rollout.is_complete:
            waits = f"{rollout.reason} It waits while {paused_by} is true."
            rollout = rollout._replace(reason=waits)
        return dataclasses.replace(
            found,
            actions=(),
            drain=None,
            rollout=rollout,
            reason=f"Paused, as {paused_by} asks.",
            operation=broker.status.operation,
        )
    return found


def _plan(observed: Observed, options: Options) -> Plan:
    """Decide as if nothing were paused."""
    broker = observed.broker
    live = observed.child(kinds.STATEFUL_SET, names.stateful_set(broker.metadata.name))
    image = workload.image_of(broker, options, live)
    sizes = claims.sizes(observed)
    # Before anything else: room for the data is what a broker that cannot run may be waiting for.
    first: list[Action] = [*claims.changes(observed, sizes)]
    found = Plan(
        actions=(),
        reason="",
        image=image,
        declared=storage_preflight.judge(observed, options),
        warnings=_warnings(observed, sizes),
        sizes=sizes,
        operation=broker.status.operation,
    )
    if live is None:
        again = workload.recreation(observed, options, image)
        if again is not None:
            return _planned(
                found,
                (*first, *again.actions),
                image=again.image,
                rollout=again.rollout,
                upgrade=again.upgrade,
            )
    try:
        config_map = settings_map.config_map(broker)
        settings_map.own_texts(broker)
    except ConfigError as error:
        wrong = Block(reason="InvalidConfiguration", sentence=str(error))
        return _blocked(found, observed, first, wrong)
    block = _block(observed, found.declared, config_map)
    if block is not None and block.reason in ("NameTaken", "SecretUnusable", "TopologyRefused"):
        return _blocked(found, observed, first, block)
    actions = [*first, *children.supporting(observed, config_map)]
    if block is not None:
        return _blocked(found, observed, actions, block)
    name = config_map["metadata"]["name"]
    actions += live_files.nudges(observed)
    attributes, unmet = claim_attributes.changes(observed)
    actions += attributes
    found = dataclasses.replace(found, warnings=(*found.warnings, *unmet))
    is_kept_asleep = waking.sleep_on(observed, live, image)
    drain = draining.next_step(observed, live, is_kept_asleep=is_kept_asleep)
    change = workload.stateful_set_step(observed, options, image, name, live, drain, sizes)
    step = change.rollout
    actions += change.actions
    is_complete = step is not None and step.is_complete
    if change.operation is None and not change.actions:
        actions += _single_restarts(observed, sizes, change, drain)
    if is_complete and not change.actions:
        actions += children.superseded(observed, name)
    return _planned(
        found,
        actions,
        reason=_reason(step, actions, drain),
        image=change.image,
        rollout=step,
        operation=change.operation,
        drain=drain,
        warnings=(*found.warnings, *([drain.problem] if drain.problem else [])),
        upgrade=change.upgrade,
        is_template_pending=change.is_template_pending,
    )


def _warnings(observed: Observed, sizes: tuple[ClaimSize, ...]) -> tuple[str, ...]:
    """Return what of the claims is not done as asked, a sentence each."""
    refused = (size.refusal for size in sizes if size.refusal and size.capacity)
    return (*refused, *adoption.problems(observed))


def _reason(step: Rollout | None, actions: list[Action], drain: DrainStep) -> str:
    """Return the sentence that says most about where everything stands."""
    if step is None or step.is_complete:
        if actions:
            return actions[-1].sentence
        if drain.operation is not None:
            return drain.operation.message
    return step.reason if step is not None else "The StatefulSet is made."


def _single_restarts(
    observed: Observed, sizes: tuple[ClaimSize, ...], change: workload.Change, drain: DrainStep
) -> list[Action]:
    """Return the restart of a broker that needs one by itself, to grow or for settings of its own.

    One that serves is restarted only while nothing else is under way, and in time.
    """
    is_complete = change.rollout is not None and change.rollout.is_complete
    is_busy = not is_complete or drain.operation is not None or change.is_upgrading
    is_held = bool(maintenance.no_restart(observed.broker, observed.time))
    restart = resize_restarts.restart(observed, sizes, is_rolling=is_busy or is_held)
    if restart is None:
        restart = own_restarts.restart(observed, is_busy=is_busy or is_held)
    return [] if restart is None else [restart]


def _planned(found: Plan, actions: Iterable[Action], **more: Any) -> Plan:
    """Return a plan with its actions; its reason is that of the last one, unless given."""
    done = tuple(actions)
    return dataclasses.replace(
        found, **{"reason": done[-1].sentence if done else "", "actions": done} | more
    )


def _blocked(found: Plan, observed: Observed, actions: list[Action], block: Block) -> Plan:
    """Return a plan that makes and changes no pod, but lets volumes grow."""
    if not replacement.is_under_way(observed):
        restart = resize_restarts.restart(observed, found.sizes, is_rolling=True)
        actions = [*actions, restart] if restart is not None else actions
    return _planned(found, actions, reason=block.sentence, block=block)


def _block(
    observed: Observed, declared: tuple[Declared, ...], config_map: dict[str, Any]
) -> Block | None:
    """Return what stands in the way of pods, the worst first."""
    topology = scaling.refused_topology(observed.broker)
    if topology is not None:
        return topology
    taken = children.taken_name(observed, config_map)
    if taken is not None:
        return taken
    if observed.credentials.problem:
        return Block(reason="SecretUnusable", sentence=observed.credentials.problem)
    refused = next((item for item in declared if item.verdict.is_denied), None)
    if refused is not None and not scaling.is_asleep(observed.broker):
        return Block(reason=refused.reason, sentence=refused.verdict.sentence, is_storage=True)
    return None
