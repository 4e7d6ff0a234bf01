"""The StatefulSet: its image, its template, and the step of a change that comes next.

Owns: what the StatefulSet should be now. Which template it has is for `upgrade` to say, which pod
may change for `rollout`, and when it is made anew for `replacement`.
Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vespiary_operator import (
    names,
    pods,
    replacement,
    rollout,
    scaling,
    templates,
    upgrade,
    waking,
)
from vespiary_operator.actions import Action, Apply
from vespiary_operator.builders import statefulset
from vespiary_operator.claims import ClaimSize
from vespiary_operator.draining import DrainStep
from vespiary_operator.drift import departure, difference
from vespiary_operator.observation import Observed
from vespiary_operator.options import Options
from vespiary_operator.ownership import forgotten
from vespiary_operator.rollout import Rollout
from vespiary_operator.scaling import Scale
from vespiary_operator.templates import Kept
from vespiary_operator.upgrade import Decision, Wish
from vespiary_spec.resources import Broker
from vespiary_spec.status import Operation
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_spec.upgrade_status import UpgradeStatus


def image_of(broker: Broker, options: Options, stateful_set: Mapping[str, Any] | None) -> str:
    """Return the image of a Broker's pods.

    What the user says wins. A Broker that says nothing keeps what it has got, so that a new
    operator restarts nobody.

    Args:
        broker: The Broker.
        options: Has the default image.
        stateful_set: The live one, in case the status was lost.
    """
    if broker.spec.image:
        return broker.spec.image
    repository = options.broker_image.partition("@")[0]
    last = repository.rpartition("/")[2]
    if ":" in last:
        repository = repository.rpartition(":")[0]
    if broker.spec.version:
        return f"{repository}:{broker.spec.version}"
    if broker.status.image:
        return broker.status.image
    template = ((stateful_set or {}).get("spec") or {}).get("template")
    return templates.image_of(template) or options.broker_image


class Change(NamedTuple):
    """What is done about the StatefulSet.

    Attributes:
        rollout: Where a change of the pods stands; None without a StatefulSet.
        image: Image that the pods have, or are getting.
        actions: What is done.
        operation: What goes on over several passes; None if nothing does.
        upgrade: Where an upgrade stands; None where there was none.
        is_upgrading: Whether that is under way.
        is_template_pending: Whether a newer operator's template waits for a change by the user.
    """

    rollout: Rollout | None
    image: str
    actions: tuple[Action, ...] = ()
    operation: Operation | None = None
    upgrade: UpgradeStatus | None = None
    is_upgrading: bool = False
    is_template_pending: bool = False


def _manifest(
    broker: Broker,
    options: Options,
    image: str,
    config_map: str,
    partition: int,
    scale: Scale,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Return the StatefulSet as the Broker wants it, with a template that is kept if one is."""
    return statefulset.stateful_set(
        broker,
        image=image,
        pull_policy=_pull_policy(broker, options),
        config_map=config_map,
        partition=partition,
        scale=scale,
        template=None if kept is None else kept.template,
        annotations=None if kept is None else templates.annotation(kept),
    )


def recreation(observed: Observed, options: Options, image: str) -> Change | None:
    """Return what makes the StatefulSet again whose pods are still there.

    It does not depend on anything that may stand in the way of a change: nobody brings a pod back
    as long as there is none.

    Returns:
        None if nothing tells from which template the pods were made.
    """
    status = observed.broker.status
    scale = scaling.scale(observed.broker, None)
    # The template is replaced by the one of the pods, so the ConfigMap's name is not needed.
    manifest = replacement.restored(
        observed, _manifest(observed.broker, options, image, "", scale.pods, scale)
    )
    if manifest is None:
        return None
    action = replacement.recreation(observed, manifest)
    return Change(
        Rollout(scale.pods, True, action.sentence),
        templates.image_of(manifest["spec"]["template"]),
        (action,),
        status.operation,
        status.upgrade,
    )


def stateful_set_step(
    observed: Observed,
    options: Options,
    image: str,
    config_map: str,
    live: Mapping[str, Any] | None,
    drain: DrainStep,
    found: tuple[ClaimSize, ...],
) -> Change:
    """Return where the pods' change stands, and what is done about the StatefulSet."""
    broker = observed.broker
    replicas = drain.scale.pods

    def whole(kept: Kept | None, partition: int) -> dict[str, Any]:
        return _manifest(broker, options, image, config_map, partition, drain.scale, kept)

    name = names.stateful_set(broker.metadata.name)
    template = whole(None, replicas)["spec"]["template"]
    if live is None:
        first = Kept(revision=templates.revision_of(broker, image), template=template)
        making = Apply(
            manifest=whole(first, replicas),
            reason="Created",
            sentence=f"The StatefulSet {name} is made with {replicas} "
            f"{'broker' if replicas == 1 else 'brokers'}.",
        )
        return Change(None, image, (making,))
    kept = templates.kept(live)
    as_it_is = kept.image if kept is not None else templates.image_of(templates.live(live))
    replaced = replacement.proceed(observed, whole(kept, replicas), live)
    if replaced is not None and replaced.operation is not None:
        waits = Rollout(replicas, True, replaced.operation.message)
        last = broker.status.upgrade
        return Change(waits, as_it_is, replaced.actions, replaced.operation, last)
    if pods.is_terminating(live):
        waits = Rollout(replicas, False, f"The former StatefulSet {name} has yet to go.")
        return Change(waits, as_it_is, upgrade=broker.status.upgrade)
    wish = Wish(
        image=image,
        template=template,
        pull_policy=_pull_policy(broker, options),
        config_map=config_map,
        replicas=replicas,
        hold="" if drain.operation is None else drain.operation.message,
    )
    decision = upgrade.decide(observed, wish, live)
    step, actions = _rollout_step(observed, live, whole, drain, decision)
    change = Change(
        step,
        decision.kept.image,
        (*actions, *decision.actions),
        upgrade=decision.status,
        is_upgrading=decision.is_under_way,
        is_template_pending=decision.is_pending,
    )
    is_quiet = step.is_complete and not change.actions and drain.operation is None
    if is_quiet and not change.is_upgrading and replacement.sizes_are_reached(found):
        begun = replacement.begin(observed, whole(decision.kept, replicas), live)
        if begun is not None and begun.operation is not None:
            return change._replace(actions=begun.actions, operation=begun.operation)
    return change


def _rollout_step(
    observed: Observed,
    live: Mapping[str, Any],
    whole: Callable[[Kept, int], dict[str, Any]],
    drain: DrainStep,
    decision: Decision,
) -> tuple[Rollout, tuple[Action, ...]]:
    """Return the next step of a change of what can be changed in place."""
    replicas = drain.scale.pods

    def wanted(partition: int) -> dict[str, Any]:
        return replacement.with_fixed_fields(whole(decision.kept, partition), live)

    where = _template_departure(wanted(replicas), live)
    if where:
        sentence = f"The pods' template changes ({where})"
        change = Apply(
            manifest=wanted(replicas),
            reason="TemplateChanged",
            sentence=f"{sentence}; one broker after the other gets it.",
        )
        return Rollout(replicas, False, f"{sentence}."), (change,)
    running = [pod for pod in observed.pods if _belongs(pod, live)]
    step = rollout.next_step(
        live, running, replicas=replicas, floor=decision.floor, hold=decision.hold
    )
    manifest = wanted(step.partition)
    where = departure(manifest, live)
    actions = (_put_right(manifest, live, where, step, drain),) if where else ()
    if drain.scale.is_kept_asleep:
        step = step._replace(is_complete=False, reason=waking.sentence(decision.status))
    elif decision.status is not None and decision.status.stage is Stage.CHECKING:
        step = step._replace(is_complete=False, reason=decision.status.message)
    return step, actions


def _put_right(
    manifest: dict[str, Any],
    live: Mapping[str, Any],
    where: str,
    found: Rollout,
    drain: DrainStep,
) -> Apply:
    """Return what makes a StatefulSet as wanted whose template is."""
    name, replicas = manifest["metadata"]["name"], manifest["spec"]["replicas"]
    has = (live.get("spec") or {}).get("replicas")
    reason, sentence = "Restored", f"The StatefulSet {name} is put right: {where}."
    if drain.shrinks:
        reason = "ForcedScaleDown" if drain.is_forced else "Scaled"
        sentence = drain.shrinks
    elif where.endswith("rollingUpdate.partition"):
        reason, sentence = "RollingUpdate" if found.restarts else "Gate", found.reason
    elif has != replicas:
        reason = "Scaled"
        sentence = f"The StatefulSet {name} goes from {has} to {replicas} brokers."
    elif where.startswith(f"metadata.annotations.{templates.ANNOTATION}"):
        reason = "Gate"
        sentence = f"The StatefulSet {name} keeps what its pods were asked to be."
    return Apply(manifest=manifest, reason=reason, sentence=sentence)


def _pull_policy(broker: Broker, options: Options) -> str:
    asked = broker.spec.image_pull_policy
    return options.broker_pull_policy if asked is None else asked.value


def _template_departure(whole: dict[str, Any], live: Mapping[str, Any]) -> str:
    """Return where the pods' template is not as wanted, or has what was taken out of the Broker."""
    found = (live.get("spec") or {}).get("template")
    where = difference(whole["spec"]["template"], found, "spec.template")
    taken_out = forgotten(whole, live, names.MANAGER)
    return where or (taken_out if taken_out.startswith("spec.template") else "")


def _belongs(pod: Mapping[str, Any], stateful_set: Mapping[str, Any]) -> bool:
    uid = stateful_set["metadata"].get("uid")
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)
