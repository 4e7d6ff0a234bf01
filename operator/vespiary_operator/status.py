"""The status of a Broker: what was observed and planned, put into conditions and numbers.

Owns: the meaning of every condition. Pure: time is an argument, and a condition keeps its
transition time while its status stays.
Never: decides what is done (that is `plan`). Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from vespiary_operator import names, pods
from vespiary_operator.builders import services
from vespiary_operator.observation import Observed
from vespiary_operator.plan import Plan
from vespiary_operator.pods import Pod
from vespiary_spec import configuration
from vespiary_spec.resources import Broker
from vespiary_spec.status import (
    AioStatus,
    BrokerInstance,
    BrokerStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    Endpoint,
    VerdictLevel,
    VolumeStatus,
)
from vespiary_spec.verification import Verification

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

Finding = tuple[ConditionStatus, str, str]
"""Status, reason and message of a condition."""


def merged(
    previous: Iterable[Condition],
    findings: Mapping[ConditionType, Finding],
    *,
    generation: int | None,
    now: str,
) -> tuple[Condition, ...]:
    """Make conditions of findings.

    Args:
        previous: The conditions so far.
        findings: What holds now.
        generation: Generation of the resource that this is about.
        now: The time, RFC 3339.
    """
    before = {condition.type: condition for condition in previous}
    found = []
    for kind, (state, reason, message) in findings.items():
        old = before.get(kind.value)
        since = old.last_transition_time if old is not None and old.status is state else now
        found.append(
            Condition(
                type=kind.value,
                status=state,
                reason=reason,
                message=message,
                last_transition_time=since or now,
                observed_generation=generation,
            )
        )
    return tuple(found)


def compute(observed: Observed, plan: Plan, *, now: str, failure: str = "") -> BrokerStatus:
    """Return the status of a Broker.

    Args:
        observed: What was found.
        plan: What is done about it.
        now: The time, RFC 3339, for conditions that change.
        failure: Why the plan could not be carried out, as one sentence; empty if it could.
    """
    broker = observed.broker
    instances = tuple(_instance(pod, observed) for pod in observed.pods)
    wanted = broker.spec.replicas
    ready = sum(1 for instance in instances if instance.ready)
    answers = {pods.name(pod): pods.verified(pod) for pod in observed.pods}
    findings = _findings(observed, plan, answers, ready=ready, failure=failure)
    engines = sorted({instance.engine for instance in instances if instance.engine})
    return BrokerStatus(
        observed_generation=broker.metadata.generation,
        conditions=merged(
            broker.status.conditions,
            findings,
            generation=broker.metadata.generation,
            now=now,
        ),
        replicas=len(observed.pods),
        ready_replicas=ready,
        summary=f"{ready}/{wanted}",
        selector=names.selector(names.selector_labels(broker)),
        version=_version(observed, plan),
        image=plan.image,
        engine=", ".join(engines),
        storage=_storage_summary(plan, answers),
        endpoints=_endpoints(broker),
        brokers=instances,
    )


def _version(observed: Observed, plan: Plan) -> str:
    said = sorted({answer.version for answer in observed.answers.values() if answer.version})
    if said:
        return ", ".join(said)
    image = plan.image.partition("@")[0].rpartition("/")[2]
    return image.partition(":")[2]


def _endpoints(broker: Broker) -> tuple[Endpoint, ...]:
    host = f"{names.client_service(broker.metadata.name)}.{broker.metadata.namespace}.svc"
    found = [
        Endpoint(
            name=name,
            host=host,
            port=port,
            protocols=tuple(protocol.value for protocol in acceptor.protocols),
            tls=getattr(acceptor, "tls", None) is not None or broker.spec.tls is not None,
        )
        for name, port, acceptor in services.acceptor_ports(broker)
    ]
    admin = broker.spec.admin.port
    name = services.admin_port_name(broker)
    found.append(Endpoint(name=name, host=host, port=admin, protocols=("HTTP",)))
    return tuple(found)


# --- one pod ------------------------------------------------------------------------------------


def _instance(pod: Pod, observed: Observed) -> BrokerInstance:
    answer = pods.verified(pod)
    said = observed.answers.get(pods.name(pod))
    is_ready = pods.is_ready(pod)
    aio = answer.aio if answer is not None else None
    has_numbers = aio is not None and (aio.max_nr is not None or aio.demand)
    engine = (said.engine if said else "") or (answer.engine if answer else "")
    return BrokerInstance(
        name=pods.name(pod),
        ordinal=pods.ordinal(pod),
        ready=is_ready,
        node=pods.node(pod),
        engine=engine,
        durability=(said.durability if said else ""),
        message=pods.waits_for(pod),
        aio=AioStatus(max_nr=aio.max_nr, nr=aio.nr, demand=aio.demand)
        if aio is not None and has_numbers
        else None,
        volumes=_volumes(answer, observed.broker) if answer is not None else (),
    )


def _volumes(answer: Verification, broker: Broker) -> tuple[VolumeStatus, ...]:
    found = []
    for volume in answer.volumes:
        plain: dict[str, Any] = msgspec.structs.asdict(volume)
        plain["path"] = volume.path or f"{configuration.VOLUME_ROOT}/{volume.name}"
        if broker.spec.storage.ephemeral:
            plain["dedicated"] = None
        found.append(VolumeStatus(**plain))
    return tuple(found)


def _storage_summary(plan: Plan, answers: Mapping[str, Verification | None]) -> str:
    """Return the column: the volume that was refused, or the filesystems."""
    for item in plan.declared:
        if item.verdict.is_denied:
            return f"{item.volume}: refused"
    given = [answer for answer in answers.values() if answer is not None]
    for answer in given:
        for volume in answer.volumes:
            if volume.verdict is VerdictLevel.DENY:
                return f"{volume.name}: {volume.filesystem or 'refused'}"
    return ", ".join(sorted({v.filesystem for a in given for v in a.volumes if v.filesystem}))


# --- conditions ---------------------------------------------------------------------------------


def _findings(
    observed: Observed,
    plan: Plan,
    answers: Mapping[str, Verification | None],
    *,
    ready: int,
    failure: str,
) -> dict[ConditionType, Finding]:
    broker = observed.broker
    wanted = broker.spec.replicas
    storage = _storage(observed, plan, answers)
    stuck = [pod for pod in observed.pods if pods.is_stuck(pod)]
    is_ready = _ready(observed, plan, storage, stuck, ready=ready, failure=failure)
    is_moving = not broker.spec.paused and plan.block is None and not stuck
    is_made = plan.rollout is not None and plan.rollout.is_complete
    is_made = is_made and len(observed.pods) >= wanted
    is_at_rest = ready == wanted and (plan.rollout is None or is_made)
    degraded: Finding = (_FALSE, "AsExpected", "Nothing needs help from outside.")
    if failure:
        degraded = (_TRUE, "ApplyFailed", failure)
    elif plan.block is not None:
        degraded = (_TRUE, plan.block.reason, plan.block.sentence)
    elif stuck:
        degraded = (_TRUE, "BrokerStuck", f"{pods.name(stuck[0])}: {pods.waits_for(stuck[0])}")
    elif plan.warnings:
        degraded = (_TRUE, "NotAsAsked", " ".join(plan.warnings))
    return {
        ConditionType.READY: is_ready,
        ConditionType.AVAILABLE: (
            (_TRUE, "Serving", f"{ready} of {wanted} brokers serve clients.")
            if ready
            else (_FALSE, "NoneReady", is_ready[2])
        ),
        ConditionType.PROGRESSING: (
            (_TRUE, "Moving", plan.reason)
            if is_moving and not is_at_rest
            else (_FALSE, "AtRest", is_ready[2])
        ),
        ConditionType.DEGRADED: degraded,
        ConditionType.STORAGE_VERIFIED: storage,
        ConditionType.JOURNAL_ENGINE: _engine(observed, answers),
        ConditionType.NODE_TUNED: _node_tuned(observed, answers),
        ConditionType.CONFIG_APPLIED: _config_applied(plan, is_complete=is_made),
        ConditionType.UP_TO_DATE: _up_to_date(plan, is_complete=is_made),
        ConditionType.PAUSED: (
            (_TRUE, "Asked", "spec.paused is true: nothing is changed, the status is reported.")
            if broker.spec.paused
            else (_FALSE, "NotAsked", "The operator looks after this Broker.")
        ),
    }


def _ready(
    observed: Observed,
    plan: Plan,
    storage: Finding,
    stuck: list[Pod],
    *,
    ready: int,
    failure: str,
) -> Finding:
    wanted = observed.broker.spec.replicas
    if plan.block is not None:
        return _FALSE, plan.block.reason, plan.block.sentence
    if wanted == 0:
        return _FALSE, "ScaledToZero", "No broker is asked for: spec.replicas is 0."
    if ready >= wanted:
        said = (
            f"All {wanted} brokers serve clients." if wanted > 1 else "The broker serves clients."
        )
        return _TRUE, "Serving", said
    if storage[0] is _FALSE:
        return _FALSE, storage[1], storage[2]
    if failure:
        return _FALSE, "ApplyFailed", failure
    for pod in (*stuck, *observed.pods):
        if not pods.is_ready(pod):
            reason = "BrokerStuck" if pods.is_stuck(pod) else "Starting"
            return _FALSE, reason, f"{pods.name(pod)}: {pods.waits_for(pod)}"
    return _FALSE, "Starting", plan.reason


def _storage(observed: Observed, plan: Plan, answers: Mapping[str, Verification | None]) -> Finding:
    denied = next((item for item in plan.declared if item.verdict.is_denied), None)
    if denied is not None:
        return _FALSE, "VolumeRefused", denied.verdict.sentence
    given = [(name, answer) for name, answer in answers.items() if answer is not None]
    for name, answer in given:
        if answer.refusal:
            volumes = [v for v in answer.volumes if v.verdict is VerdictLevel.DENY]
            reason = "VolumeRefused" if volumes else "Refused"
            return _FALSE, reason, f"{name}: {answer.refusal}"
    warnings = [item.verdict.sentence for item in plan.declared]
    warnings += [
        volume.reason
        for _, answer in given
        for volume in answer.volumes
        if volume.verdict is VerdictLevel.WARN and volume.reason
    ]
    if len(given) < observed.broker.spec.replicas or not given:
        return _UNKNOWN, "NotVerifiedYet", "Not every broker has looked at its volumes yet."
    if warnings:
        return _TRUE, "VerifiedWithWarnings", " ".join(dict.fromkeys(warnings))
    if not any(answer.volumes for _, answer in given):
        return _TRUE, "NothingToVerify", "Nothing is kept on a disk: persistence is switched off."
    return _TRUE, "Verified", "Every volume was looked at from inside its pod and is fine."


def _engine(observed: Observed, answers: Mapping[str, Verification | None]) -> Finding:
    asked = observed.broker.spec.config.journal_type
    if not observed.broker.spec.config.persistence_enabled:
        return _TRUE, "InMemory", "Nothing is kept on a disk, as persistenceEnabled: false asks."
    found: list[tuple[str, str, str]] = []
    for name, answer in answers.items():
        said = observed.answers.get(name)
        engine = (said.engine if said else "") or (answer.engine if answer else "")
        if engine:
            found.append((name, engine, answer.engine_reason if answer else ""))
    for name, engine, reason in found:
        if engine.upper() != asked.value:
            why = reason or f"{engine} is used instead of {asked.value}."
            return _FALSE, "Fallback", f"{name}: {why}"
    if not found:
        return _UNKNOWN, "NotKnownYet", "No broker has said which engine it uses."
    return _TRUE, "AsAsked", f"The journal is written by {asked.value}, as asked."


def _node_tuned(observed: Observed, answers: Mapping[str, Verification | None]) -> Finding:
    settings = observed.broker.spec.config
    if not settings.journal_type.may_use_aio or not settings.persistence_enabled:
        return _TRUE, "NotNeeded", "The journal does not use asynchronous I/O."
    known = 0
    for name, answer in answers.items():
        if answer is None or answer.aio.max_nr is None or answer.aio.nr is None:
            continue
        known += 1
        if not answer.aio.is_enough:
            free = max(0, answer.aio.max_nr - answer.aio.nr)
            return (
                _FALSE,
                "AioShortage",
                f"{name}: {answer.aio.demand} AIO requests are needed on its node and {free} of "
                f"fs.aio-max-nr={answer.aio.max_nr} were free (fs.aio-nr={answer.aio.nr}). Let a "
                "BrokerNodeTuning with mode Raise set it, or lower spec.config.journalMaxIo; then "
                "restart the pod.",
            )
    if not known:
        return _UNKNOWN, "NotKnownYet", "No broker has looked at fs.aio-max-nr yet."
    return _TRUE, "Enough", "fs.aio-max-nr left room for every broker when it started."


def _config_applied(plan: Plan, *, is_complete: bool) -> Finding:
    if plan.block is not None:
        return _FALSE, plan.block.reason, plan.block.sentence
    if is_complete:
        return _TRUE, "Applied", "All brokers run with the current settings."
    if plan.rollout is None or plan.rollout.is_complete:
        return _UNKNOWN, "NotStarted", "The brokers have yet to be made."
    return _FALSE, "RollingOut", plan.rollout.reason


def _up_to_date(plan: Plan, *, is_complete: bool) -> Finding:
    if is_complete:
        return _TRUE, "UpToDate", f"All brokers run {plan.image}."
    if plan.rollout is None or plan.rollout.is_complete:
        return _UNKNOWN, "NotStarted", "The brokers have yet to be made."
    return _FALSE, "RollingOut", plan.rollout.reason
