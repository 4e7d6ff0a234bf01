"""An upgrade: which template the pods should have now, and which broker may get it.

What is under way is told by the StatefulSet's annotation (`templates`), which changes in the same
write as its template; `status.upgrade` adds the stage, and since when. So a pass that was cut short
after any write finds its way again, and a status that was lost costs a soak time and no more.

Owns: what makes an upgrade go from one stage to the next. The ways are the table of
`upgrade_stages`, the checks are `upgrade_checks`, what is healthy says `health`.
Never: reads the cluster or the clock. Called by: `workload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from vespiary_operator import (
    health,
    kinds,
    maintenance,
    pods,
    rollout,
    templates,
    upgrade_checks,
    upgrade_progress,
    upgrade_refusal,
    upgrade_stages,
)
from vespiary_operator.actions import Action, deletion
from vespiary_operator.builders import journal_snapshot
from vespiary_operator.drift import difference
from vespiary_operator.health import Health
from vespiary_operator.observation import Observed
from vespiary_operator.templates import Kept, Template
from vespiary_operator.upgrade_checks import Checked
from vespiary_operator.upgrade_stages import Cause
from vespiary_spec.resources import AdoptOperatorTemplate, Broker, UpgradeStrategy
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_spec.upgrade_status import UpgradeStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the Broker asks for.

    Attributes:
        image: Image of the pods.
        template: Template that this operator would write.
        pull_policy: When images are pulled.
        config_map: Name of the ConfigMap that the template mounts.
        replicas: Pods that there should be.
        hold: Why no broker may get another version now; empty if one may.
    """

    image: str
    template: Template
    pull_policy: str
    config_map: str
    replicas: int
    hold: str = ""

    def is_asleep(self, observed: Observed) -> bool:
        """Return whether there is no broker, and is to be none for now."""
        return self.replicas == 0 and not observed.pods


class Decision(NamedTuple):
    """What is done about templates.

    Attributes:
        kept: What the StatefulSet should have.
        status: Where an upgrade stands; None where there was none.
        actions: What else is done.
        floor: The partition may not go below this.
        hold: Why no broker may be restarted now; empty if one may.
        is_pending: Whether a newer template of the operator waits for a change by the user.
    """

    kept: Kept
    status: UpgradeStatus | None = None
    actions: tuple[Action, ...] = ()
    floor: int = 0
    hold: str = ""
    is_pending: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether pods have two versions, or may have soon."""
        stage = None if self.status is None else self.status.stage
        return self.kept.before is not None or stage in (Stage.CHECKING, Stage.ROLLING_BACK)


def decide(observed: Observed, wish: Wish, live: Mapping[str, Any]) -> Decision:
    """Decide which template the pods should have.

    Args:
        observed: What was found.
        wish: What the Broker asks for.
        live: The StatefulSet.
    """
    broker = observed.broker
    revision = templates.revision_of(broker, wish.image)
    kept = templates.kept(live) or _unknown(observed, wish, live)
    if is_another(broker, kept, wish.image):
        found = _checking(observed, wish, kept, revision)
    elif _is_given_up(kept, wish.image):
        found = _going_back(observed, wish, _adapted(wish, kept, revision), live, revision)
    elif revision != kept.revision:
        if journal_snapshot.without_snapshot(kept.template) == wish.template:
            observed = _still_about(observed, kept, revision)
        before = None if kept.failure else kept.before
        kept = Kept(
            revision=revision,
            template=wish.template,
            before=before,
            moves=kept.moves if before is not None else (),
            snapshot=kept.snapshot,
            has_run=kept.has_run,
        )
        if kept.moves:
            kept = _with_snapshot(kept)
        found = _continued(observed, wish, kept, live, revision)
    else:
        found = _continued(observed, wish, kept, live, revision)
    is_running = any(
        pods.has_begun(pod) and templates.image_of(pod) == found.kept.image for pod in observed.pods
    )
    if is_running and not found.kept.has_run:
        found = found._replace(kept=msgspec.structs.replace(found.kept, has_run=True))
    if not _is_checking(observed, found.status):
        leftovers = (
            deletion(kinds.POD, pod, "its question was answered.")
            for pod in observed.checks
            if not pods.is_terminating(pod)
        )
        found = found._replace(actions=(*found.actions, *leftovers))
    return found


def is_another(broker: Broker, kept: Kept, image: str) -> bool:
    """Return whether a Broker asks for another version than its pods have or are getting.

    Args:
        broker: The Broker.
        kept: The templates so far.
        image: The image that it asks for.
    """
    if _is_given_up(kept, image):
        return maintenance.retry_asked(broker) not in ("", kept.retried)
    return templates.revision_of(broker, image) != kept.revision and image != kept.image


def _is_given_up(kept: Kept, image: str) -> bool:
    """Return whether an image is the one that was taken back."""
    return bool(kept.failure) and image == kept.failed_image


def _is_checking(observed: Observed, status: UpgradeStatus | None) -> bool:
    """Return whether images may be asked now."""
    if status is None:
        return False
    is_again = status.stage is Stage.REFUSED and upgrade_refusal.is_due(observed, status)
    return is_again or status.stage is Stage.CHECKING


def _adapted(wish: Wish, kept: Kept, revision: str) -> Kept:
    """Return what brokers have whose Broker asks for a version that failed: that before.

    Settings that were changed since reach it; they are no reason to try the other one again.
    """
    if revision == kept.revision:
        return kept
    template = templates.with_image(wish.template, wish.image, kept.image)
    return msgspec.structs.replace(kept, revision=revision, template=template)


def _still_about(observed: Observed, kept: Kept, revision: str) -> Observed:
    """Return what was found, with the status of an upgrade that other settings do not concern.

    Running brokers take them, so the upgrade stands where it stood, and for as long.
    """
    status = observed.broker.status
    known = status.upgrade
    if known is None or known.revision != kept.revision:
        return observed
    known = msgspec.structs.replace(known, revision=revision)
    status = msgspec.structs.replace(status, upgrade=known)
    return replace(observed, broker=msgspec.structs.replace(observed.broker, status=status))


def _unknown(observed: Observed, wish: Wish, live: Mapping[str, Any]) -> Kept:
    """Return what is taken for kept where the annotation is not there."""
    if observed.pods and all(templates.image_of(pod) == wish.image for pod in observed.pods):
        # Whatever stands in the StatefulSet, no broker has it: this is no other version.
        return Kept(revision="", template=wish.template)
    return Kept(revision="", template=templates.live(live))


# --- before anything is changed -----------------------------------------------------------------


def _checking(observed: Observed, wish: Wish, kept: Kept, revision: str) -> Decision:
    """Check, and change the template when every check says yes."""
    broker = observed.broker
    status = upgrade_progress.reported(
        observed, revision, frozenset({Stage.CHECKING, Stage.REFUSED})
    )
    # What is half done goes no further while another version is looked at: nobody watches it.
    hold = "Another version is asked for." if kept.before is not None else ""
    is_refused = status is not None and status.stage is Stage.REFUSED
    if status is None or (is_refused and upgrade_refusal.is_another(observed, status)):
        status = _begun(observed, wish, kept, revision)
    elif is_refused and not upgrade_refusal.is_due(observed, status):
        return Decision(kept, status, hold=hold)
    # Nobody is restarted for it where everybody sleeps.
    closed = "" if wish.is_asleep(observed) else maintenance.no_restart(broker, observed.time)
    found = upgrade_checks.checked(
        observed, kept, wish.image, pull_policy=wish.pull_policy, hold=closed or wish.hold
    )
    if not found.is_passed and not found.is_refusal and status.stage is Stage.REFUSED:
        if not found.is_asking:
            status = upgrade_refusal.postponed(observed, status)
        return Decision(kept, status, found.actions, hold=hold)
    status = msgspec.structs.replace(
        status,
        from_version=found.from_version or status.from_version,
        to_version=found.to_version or status.to_version,
        format_change=bool(found.moves),
        rates_before=status.rates_before or _first_rates(observed),
        reason=found.reason,
        message=found.sentence,
    )
    if not found.is_passed:
        if found.is_refusal:
            status = upgrade_refusal.refused(observed, status)
        return Decision(kept, status, found.actions, hold=hold)
    return _passed(observed, wish, kept, revision, status, found)


def _passed(
    observed: Observed,
    wish: Wish,
    kept: Kept,
    revision: str,
    status: UpgradeStatus,
    found: Checked,
) -> Decision:
    """Change the template: every check says yes."""
    is_return = kept.before is not None and wish.image == templates.image_of(kept.before)
    # The version before is taken back by hand: it was good, so it needs no canary.
    is_return = is_return or upgrade_checks.is_copy_restored(observed, kept)
    moves = {**{move.name: move.before for move in found.moves}, **dict(kept.moves)}
    if is_return:
        moves = {}
    new = Kept(
        revision=revision,
        template=wish.template,
        before=None if is_return else kept.before or kept.template,
        moves=tuple(moves.items()),
        snapshot=f"{revision}-{observed.time:%Y%m%d%H%M%S}" if moves else "",
    )
    if is_return and observed.pods:
        return Decision(new)
    if new.moves:
        new = _with_snapshot(new)
    status = msgspec.structs.replace(
        status, reason="", message=f"Every check says yes: {wish.image} may be tried."
    )
    return Decision(
        new,
        # Where everybody sleeps, nobody is the first: all of them wake with it.
        upgrade_progress.passed(observed, status, is_at_once=wish.is_asleep(observed)),
        floor=wish.replicas,
        hold="The template is changed first.",
    )


def _with_snapshot(kept: Kept) -> Kept:
    template = journal_snapshot.with_snapshot(kept.template, name=kept.snapshot, moves=kept.moves)
    return msgspec.structs.replace(kept, template=template)


def _first_rates(observed: Observed) -> Any:
    first = next((p for p in reversed(observed.pods) if pods.name(p) in observed.answers), None)
    return None if first is None else health.rates_of(observed.answers[pods.name(first)])


def _begun(observed: Observed, wish: Wish, kept: Kept, revision: str) -> UpgradeStatus:
    now = upgrade_progress.text(observed.time)
    return UpgradeStatus(
        stage=Stage.CHECKING,
        revision=revision,
        from_image=templates.image_of(kept.before) if kept.before is not None else kept.image,
        to_image=wish.image,
        began_at=now,
        stage_since=now,
    )


# --- once the template was changed --------------------------------------------------------------


def _continued(
    observed: Observed, wish: Wish, kept: Kept, live: Mapping[str, Any], revision: str
) -> Decision:
    """Go on with what the annotation says is under way."""
    if kept.before is not None:
        return _under_way(observed, wish, kept, live, revision)
    if kept.failure:
        return _going_back(observed, wish, kept, live, revision)
    hold = maintenance.no_restart(observed.broker, observed.time)
    plain = journal_snapshot.without_snapshot(kept.template)
    is_pending = revision == kept.revision and plain != wish.template
    adopts = observed.broker.spec.upgrade.adopt_operator_template is AdoptOperatorTemplate.ALWAYS
    if is_pending and (adopts or _lacks_config_map(observed, wish, kept)):
        kept = msgspec.structs.replace(kept, template=wish.template)
        is_pending = False
    last = observed.broker.status.upgrade
    if last is not None and last.stage is Stage.ROLLING and last.revision == revision:
        last = upgrade_progress.completed(
            observed, last
        )  # the pass that found it complete was cut short
    if last is not None and last.stage is not Stage.COMPLETE:
        last = None
    return Decision(kept, last, hold=hold, is_pending=is_pending)


def _lacks_config_map(observed: Observed, wish: Wish, kept: Kept) -> bool:
    """Return whether pods of the kept template could not start: what it mounts is gone."""
    return any(
        name != wish.config_map and observed.child(kinds.CONFIG_MAP, name) is None
        for name in templates.config_maps(kept.template)
    )


def _under_way(
    observed: Observed, wish: Wish, kept: Kept, live: Mapping[str, Any], revision: str
) -> Decision:
    broker = observed.broker
    status = upgrade_progress.reported(observed, revision, upgrade_stages.UNDER_WAY)
    if status is None:
        # The status was lost, or settings were changed: the first broker is watched anew.
        is_at_once = broker.spec.upgrade.strategy is UpgradeStrategy.ROLLING_UPDATE
        status = msgspec.structs.replace(
            _begun(observed, wish, kept, revision),
            stage=Stage.ROLLING if is_at_once else Stage.CANARY,
            format_change=bool(kept.moves),
            journal_opened=bool(kept.moves),
        )
    seen = _look(observed, wish, kept, live, status)
    status = msgspec.structs.replace(
        status,
        # The annotation's word: the status may be that of a pass before, which did not know yet.
        format_change=status.format_change or bool(kept.moves),
        journal_opened=status.journal_opened or seen.has_begun or kept.has_run,
        unhealthy_since=""
        if seen.is_unknown or seen.worst.is_healthy
        else status.unhealthy_since or upgrade_progress.text(observed.time),
        reason="",
        message=_sentence(status, seen, wish.replicas),
    )
    cause = _cause(observed, wish, status, seen)
    if cause in (Cause.FAILED, Cause.FAILED_FOR_GOOD):
        return _failed(observed, wish, kept, status, seen, cause)
    if cause is Cause.DONE:
        done = Kept(revision=revision, template=kept.template, snapshot=kept.snapshot, has_run=True)
        return Decision(done, upgrade_progress.completed(observed, status))
    if cause is not None:
        status = upgrade_progress.moved(observed, status, cause)
        if status.stage is Stage.SOAKING:
            status = msgspec.structs.replace(status, baseline=_first_baseline(observed))
        status = msgspec.structs.replace(status, message=_sentence(status, seen, wish.replicas))
    floor = 0 if status.stage is Stage.ROLLING else max(0, wish.replicas - 1)
    hold = maintenance.no_restart(broker, observed.time) or wish.hold
    if status.stage is Stage.HALTED:
        hold = status.message
    elif not seen.is_unknown and not seen.worst.is_healthy:
        hold = hold or seen.worst.sentence
    if hold and status.stage in (Stage.CANARY, Stage.ROLLING) and seen.worst.is_healthy:
        status = msgspec.structs.replace(status, reason="RestartsHeld", message=hold)
    return Decision(kept, status, floor=floor, hold=hold)


class _Seen(NamedTuple):
    """What was found about brokers that have the new version, or are getting it.

    Attributes:
        worst: The least healthy of them.
        is_unknown: Whether none can be judged yet, since none was restarted.
        has_begun: Whether one of them has begun to run.
        is_done: Whether all brokers have it, and are healthy.
    """

    worst: Health
    is_unknown: bool
    has_begun: bool
    is_done: bool


def _look(
    observed: Observed, wish: Wish, kept: Kept, live: Mapping[str, Any], status: UpgradeStatus
) -> _Seen:
    replicas = wish.replicas
    is_there = not difference(kept.template, (live.get("spec") or {}).get("template"), "template")
    if not is_there or not rollout.is_settled(live):
        return _Seen(Health(True), True, False, False)
    newest = (live.get("status") or {}).get("updateRevision", "")
    by_ordinal = {pods.ordinal(pod): pod for pod in observed.pods}
    is_asked = bool(observed.credentials.admin_password)
    soak = _soak(observed, status)
    found: list[Health] = []
    has_begun = is_waiting = False
    for ordinal in range(replicas):
        pod = by_ordinal.get(ordinal)
        is_new = pod is not None and pods.revision(pod) == newest
        if pod is not None and is_new:
            has_begun = has_begun or pods.has_begun(pod)
            answer = observed.answers.get(pods.name(pod))
            is_first = ordinal == replicas - 1
            found.append(
                health.of_broker(pod, answer, is_asked=is_asked, soak=soak if is_first else None)
            )
        elif ordinal >= rollout.current_partition(live):
            if pod is None:
                found.append(Health(False, False, f"Broker {ordinal} is being made."))
            else:
                is_waiting = True
    worst = next((one for one in found if one.is_hopeless), None) or next(
        (one for one in found if not one.is_healthy), health.GOOD
    )
    current = (live.get("status") or {}).get("currentRevision")
    is_done = len(found) == replicas and worst.is_healthy and (current == newest or not replicas)
    if is_waiting and worst.is_healthy:
        worst = Health(False, False, "The broker before is being stopped.")
        return _Seen(worst, True, has_begun, False)
    return _Seen(worst, not found and replicas > 0, has_begun, is_done)


def _soak(observed: Observed, status: UpgradeStatus) -> health.Soak | None:
    """Return what the first broker is judged by, at the end of its soak time."""
    if status.stage is not Stage.SOAKING or status.baseline is None or status.rates_before is None:
        return None
    passed_s = upgrade_progress.age_s(observed.time, status.stage_since)
    if passed_s < observed.broker.spec.upgrade.soak_time:
        return None
    return health.Soak(status.baseline, status.rates_before, passed_s / 60)


def _first_baseline(observed: Observed) -> Any:
    name = pods.name(observed.pods[-1]) if observed.pods else ""
    return health.baseline_of(observed.answers.get(name))


def _cause(observed: Observed, wish: Wish, status: UpgradeStatus, seen: _Seen) -> Cause | None:
    """Return what leads to another stage now; None if nothing does."""
    wanted = observed.broker.spec.upgrade
    stage = status.stage
    if seen.is_unknown:
        return None
    if stage is Stage.HALTED:
        return Cause.HEALTHY if seen.worst.is_healthy else None
    is_over = bool(status.unhealthy_since) and (
        upgrade_progress.age_s(observed.time, status.unhealthy_since) >= wanted.deadline
    )
    if seen.worst.is_hopeless or is_over:
        is_for_good = status.format_change and status.journal_opened
        return Cause.FAILED_FOR_GOOD if is_for_good else Cause.FAILED
    if not seen.worst.is_healthy:
        return Cause.UNHEALTHY if stage is Stage.SOAKING else None
    is_supervised = wanted.strategy is UpgradeStrategy.SUPERVISED
    if stage is Stage.CANARY:
        return Cause.HEALTHY
    if stage is Stage.SOAKING:
        is_soaked = upgrade_progress.age_s(observed.time, status.stage_since) >= wanted.soak_time
        if not is_soaked and wish.replicas:
            return None
        return Cause.SOAKED_SUPERVISED if is_supervised else Cause.SOAKED
    if stage is Stage.AWAITING_APPROVAL:
        said = observed.broker.metadata.annotations.get(maintenance.ANNOTATION_APPROVE, "")
        return Cause.APPROVED if said == status.revision or not is_supervised else None
    return Cause.DONE if seen.is_done else None


def _sentence(status: UpgradeStatus, seen: _Seen, replicas: int) -> str:
    version = status.to_version or status.to_image
    if status.stage is Stage.CANARY:
        said = seen.worst.sentence if not seen.is_unknown else "It is restarted first."
        return f"Broker {replicas - 1} is the first with {version}. {said}".strip()
    if status.stage is Stage.SOAKING:
        return f"Broker {replicas - 1} is healthy with {version} and is watched."
    if status.stage is Stage.AWAITING_APPROVAL:
        return (
            f"Broker {replicas - 1} is healthy with {version}. The others get it when the Broker "
            f"has the annotation {maintenance.ANNOTATION_APPROVE}={status.revision}."
        )
    if status.stage is Stage.HALTED:
        return status.message
    said = "" if seen.is_unknown else seen.worst.sentence
    return f"One broker after the other gets {version}. {said}".strip()


# --- failure ------------------------------------------------------------------------------------


def _failed(
    observed: Observed, wish: Wish, kept: Kept, status: UpgradeStatus, seen: _Seen, cause: Cause
) -> Decision:
    version = status.to_version or status.to_image
    deadline = observed.broker.spec.upgrade.deadline
    why = seen.worst.sentence
    if not seen.worst.is_hopeless:
        why = f"{why} It was unhealthy for more than {deadline} s (spec.upgrade.deadline)."
    status = upgrade_progress.moved(observed, status, cause)
    if cause is Cause.FAILED_FOR_GOOD:
        message = (
            f"The upgrade to {version} stands still: {why} Its files may have a format that "
            f"{status.from_version or status.from_image} does not read, so it is not taken back. "
            "Choose another version that reads them, or restore the copy of the journals "
            "(docs/howto/upgrades.md)."
        )
        status = msgspec.structs.replace(status, reason="UpgradeHalted", message=message)
        floor = wish.replicas
        return Decision(kept, status, floor=floor, hold=message)
    before = kept.before
    assert before is not None
    failure = f"{version} was taken back: {why}"
    status = msgspec.structs.replace(status, reason="RollingBack", message=failure)
    return Decision(
        Kept(
            revision=kept.revision,
            template=before,
            failure=failure,
            failed_image=kept.image,
            retried=maintenance.retry_asked(observed.broker),
        ),
        status,
        floor=wish.replicas,
        hold="The template is changed first.",
    )


def _going_back(
    observed: Observed, wish: Wish, kept: Kept, live: Mapping[str, Any], revision: str
) -> Decision:
    """Have every broker on the version before, and stay there until another one is asked for."""
    stages = frozenset({Stage.ROLLING_BACK, Stage.ROLLED_BACK})
    known = observed.broker.status.upgrade
    status = upgrade_progress.reported(observed, revision, stages)
    if known is not None and known.stage in stages and known.to_image == kept.failed_image:
        status = msgspec.structs.replace(known, revision=revision)
    if status is None:
        status = msgspec.structs.replace(
            known
            if known is not None and known.revision == revision
            else _begun(observed, wish, kept, revision),
            stage=Stage.ROLLING_BACK,
            stage_since=upgrade_progress.text(observed.time),
        )
    status = msgspec.structs.replace(status, reason=status.stage.value, message=kept.failure)
    is_there = not difference(kept.template, (live.get("spec") or {}).get("template"), "template")
    if status.stage is Stage.ROLLED_BACK:
        hold = maintenance.no_restart(observed.broker, observed.time) or wish.hold
        return Decision(kept, status, hold=hold)
    if not is_there or not rollout.is_settled(live):
        return Decision(kept, status)
    good = (live.get("status") or {}).get("updateRevision", "")
    strays = [pod for pod in observed.pods if pods.revision(pod) != good]
    actions = tuple(
        deletion(kinds.POD, pod, f"it would not start, and goes back. {kept.failure}")
        for pod in strays
        if not pods.is_ready(pod) and not pods.is_terminating(pod)
    )
    is_back = not strays and all(pods.is_ready(pod) for pod in observed.pods)
    if is_back and len(observed.pods) >= wish.replicas:
        status = upgrade_progress.moved(observed, status, Cause.BACK)
        status = msgspec.structs.replace(status, reason=status.stage.value)
    return Decision(kept, status, actions)
