"""The status of a Broker: what was observed and planned, put into conditions and numbers.

Owns: the meaning of every condition. Pure: time is an argument, and a condition keeps its
transition time while its status stays.
Never: decides what is done (that is `plan`). Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from vespiary_operator import (
    adoption,
    broker_services,
    certificates,
    cluster_events,
    drain_status,
    hibernation,
    integrations,
    kinds,
    ledger,
    live_files,
    lost_nodes,
    maintenance,
    names,
    pods,
    scaling,
    size_status,
    storage_status,
    upgrade_findings,
    volume_space,
    waking,
)
from vespiary_operator.builders import services
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding, merged
from vespiary_operator.observation import Observed
from vespiary_operator.plan import Plan
from vespiary_operator.pods import Pod
from vespiary_spec.resources import Broker
from vespiary_spec.status import (
    AioStatus,
    BrokerInstance,
    BrokerStatus,
    ConditionType,
    Endpoint,
    Operation,
)
from vespiary_spec.verification import Verification


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
    wanted = scaling.pods_asked(broker)
    live = observed.child(kinds.STATEFUL_SET, names.stateful_set(broker.metadata.name))
    ready = sum(1 for instance in instances if instance.ready)
    answers = {pods.name(pod): pods.verified(pod) for pod in observed.pods}
    findings = _findings(observed, plan, answers, ready=ready, now=now, failure=failure)
    findings |= integrations.condition(observed, plan.actions, failure=failure)
    if findings[ConditionType.DEGRADED][0] is FALSE:
        low = volume_space.finding(instances, broker.spec.config, broker.spec.storage.volumes)
        findings[ConditionType.DEGRADED] = low or findings[ConditionType.DEGRADED]
    found = ledger.noticed(broker.status, observed.pods, plan.upgrade, now, plan.actions)
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
        members=scaling.members_of(broker, live) or None,
        selector=names.selector(names.selector_labels(broker)),
        version=_version(observed, plan),
        image=plan.image,
        engine=", ".join(engines),
        storage=storage_status.summary(plan, answers),
        endpoints=_endpoints(broker),
        brokers=instances,
        adoptions=adoption.records(observed, now),
        scale_down=drain_status.operation(broker, plan, now),
        scale_downs=drain_status.records(broker, plan, now),
        certificates=certificates.statuses(observed),
        volumes=size_status.volumes(broker, plan.sizes, now=now),
        operation=_operation(plan, broker, now),
        upgrade=plan.upgrade,
        restarts=found.restarts,
        known_pods=ledger.trimmed(found.known, replicas=wanted),
    )


def _operation(plan: Plan, broker: Broker, now: str) -> Operation | None:
    """Return what is under way, with the time of its begin, which a plan does not know."""
    found, before = plan.operation, broker.status.operation
    if found is None or found.started_at:
        return found
    is_same = before is not None and (before.type, before.uid) == (found.type, found.uid)
    since = before.started_at if before is not None and is_same else ""
    return msgspec.structs.replace(found, started_at=since or now)


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
            port=services.client_port(broker, name),
            protocols=tuple(protocol.value for protocol in acceptor.protocols),
            tls=getattr(acceptor, "tls", None) is not None or broker.spec.tls is not None,
        )
        for name, _, acceptor in services.acceptor_ports(broker)
    ]
    name = services.admin_port_name(broker)
    admin = services.client_port(broker, name)
    is_tls = broker.spec.admin.tls is not None
    found.append(Endpoint(name=name, host=host, port=admin, protocols=("HTTP",), tls=is_tls))
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
        host=broker_services.host(observed.broker, pods.ordinal(pod)),
        engine=engine,
        durability=(said.durability if said else ""),
        message=lost_nodes.lost(observed, pod) or pods.waits_for(pod),
        aio=AioStatus(max_nr=aio.max_nr, nr=aio.nr, demand=aio.demand)
        if aio is not None and has_numbers
        else None,
        volumes=storage_status.volumes(
            answer, observed.broker, pods.name(pod), said.spaces if said else {}
        )
        if answer is not None
        else (),
    )


# --- conditions ---------------------------------------------------------------------------------


def _findings(
    observed: Observed,
    plan: Plan,
    answers: Mapping[str, Verification | None],
    *,
    ready: int,
    now: str,
    failure: str,
) -> dict[ConditionType, Finding]:
    broker = observed.broker
    wanted = scaling.pods_asked(broker)
    storage = storage_status.verified(observed, plan, answers)
    stuck = [pod for pod in observed.pods if pods.is_stuck(pod)]
    no_certificate = certificates.unusable(observed)
    trouble = lost_nodes.finding(observed)
    if ready < wanted:  # what the pods' events say of it is less: a mount failed, or a back-off
        trouble = trouble or no_certificate
    trouble = trouble or cluster_events.trouble(observed)
    is_ready = _ready(observed, plan, storage, stuck, trouble, ready=ready, failure=failure)
    is_moving = not maintenance.paused_by(broker)
    is_moving = is_moving and plan.block is None and not stuck and trouble is None
    is_made = plan.rollout is not None and plan.rollout.is_complete
    is_made = is_made and len(observed.pods) >= wanted
    is_at_rest = ready == wanted and (plan.rollout is None or is_made)
    is_at_rest = is_at_rest and not (broker.spec.hibernate and observed.pods)
    is_at_rest = is_at_rest and (plan.drain is None or plan.drain.operation is None)
    degraded: Finding = (FALSE, "AsExpected", "Nothing needs help from outside.")
    if failure:
        degraded = (TRUE, "ApplyFailed", failure)
    elif plan.block is not None:
        degraded = (TRUE, plan.block.reason, plan.block.sentence)
    elif (halted := upgrade_findings.halted(plan)) is not None:
        degraded = halted
    elif no_certificate is not None and trouble in (None, no_certificate):
        degraded = (TRUE, *no_certificate[1:])
    elif stuck:
        degraded = (TRUE, "BrokerStuck", f"{pods.name(stuck[0])}: {pods.waits_for(stuck[0])}")
    elif trouble is not None:
        degraded = (TRUE, *trouble[1:])
    elif (waiting := storage_status.producers_wait(observed)) is not None:
        degraded = waiting
    elif plan.warnings:
        degraded = (TRUE, "NotAsAsked", " ".join(plan.warnings))
    return {
        ConditionType.READY: is_ready,
        ConditionType.AVAILABLE: (
            (TRUE, "Serving", f"{ready} of {wanted} brokers serve clients.")
            if ready
            else (FALSE, hibernation.reason(broker) or "NoneReady", is_ready[2])
        ),
        ConditionType.PROGRESSING: (
            (TRUE, "Moving", plan.reason)
            if is_moving and not is_at_rest
            else (FALSE, hibernation.reason(broker) or "AtRest", is_ready[2])
        ),
        ConditionType.DEGRADED: degraded,
        ConditionType.STORAGE_VERIFIED: storage,
        ConditionType.VOLUMES_SIZED: size_status.sized(broker, plan.sizes),
        ConditionType.JOURNAL_ENGINE: storage_status.engine(observed, answers),
        ConditionType.NODE_TUNED: storage_status.node_tuned(observed, answers),
        ConditionType.CONFIG_APPLIED: live_files.applied(
            observed, plan.block, plan.rollout, is_complete=is_made
        ),
        ConditionType.CERTIFICATE_VALID: certificates.valid(observed, now=now),
        ConditionType.UP_TO_DATE: upgrade_findings.up_to_date(plan, is_complete=is_made),
        ConditionType.DRAINING: drain_status.finding(broker, plan),
        ConditionType.PAUSED: upgrade_findings.paused(broker),
    }


def _ready(
    observed: Observed,
    plan: Plan,
    storage: Finding,
    stuck: list[Pod],
    trouble: Finding | None,
    *,
    ready: int,
    failure: str,
) -> Finding:
    wanted = scaling.pods_asked(observed.broker)
    if plan.block is not None:
        return FALSE, plan.block.reason, plan.block.sentence
    if observed.broker.spec.hibernate:
        return hibernation.ready(observed)
    if wanted == 0:
        return FALSE, "ScaledToZero", "No broker is asked for: spec.replicas is 0."
    if ready >= wanted:
        said = (
            f"All {wanted} brokers serve clients." if wanted > 1 else "The broker serves clients."
        )
        return TRUE, "Serving", said
    if plan.drain is not None and plan.drain.scale.is_kept_asleep:
        return FALSE, waking.KEPT_ASLEEP, plan.reason
    if storage[0] is FALSE:
        return FALSE, storage[1], storage[2]
    if failure:
        return FALSE, "ApplyFailed", failure
    if trouble is not None:
        return trouble
    for pod in (*stuck, *observed.pods):
        if not pods.is_ready(pod):
            reason = "BrokerStuck" if pods.is_stuck(pod) else "Starting"
            if pods.is_waiting_for_aio(pod):
                reason = "WaitingForNode"
            return FALSE, reason, f"{pods.name(pod)}: {pods.waits_for(pod)}"
    return FALSE, "Starting", plan.reason


def _up_to_date(plan: Plan, *, is_complete: bool) -> Finding:
    if is_complete:
        return TRUE, "UpToDate", f"All brokers run {plan.image}."
    if plan.rollout is None or plan.rollout.is_complete:
        return UNKNOWN, "NotStarted", "The brokers have yet to be made."
    return FALSE, "RollingOut", plan.rollout.reason
