"""Brokers that leave: drained one after the other, and only then gone.

Owns: which broker leaves, into which it is drained, and when it may go. Level-triggered: what a
leaving broker answers is looked at in each pass, and it is asked to go on in each pass in which it
does not. `status.scaleDown` says the step, so that the record of what became of a broker is written
before the broker goes. Pure. What cannot be drained stays, with a sentence; `spec.scaleDown.force`
lets it go as it is, with its claims kept.

Never: reads the cluster; talks to a broker. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vespiary_operator import names, pods, scaling
from vespiary_operator.admin_ports import admin_port
from vespiary_operator.broker_calls import BrokerCall, EndDrain, StartDrain
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.observation import Observed
from vespiary_operator.pods import Pod
from vespiary_operator.scaling import Scale
from vespiary_spec.scale_down import ScaleDownRecord
from vespiary_spec.status import Operation

SCALE_DOWN = "ScaleDown"
DRAIN = "Drain"
SHRINK = "Shrink"


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainStep:
    """Where brokers that leave stand.

    Attributes:
        scale: How many brokers and pods there should be now.
        operation: What is under way, without its time; None if nothing is.
        record: What became of the broker that goes next; to be written before it goes.
        calls: What is asked of brokers.
        problem: Why a drain does not go on by itself, as one sentence; empty if it does.
        shrinks: Sentence about the broker that goes in this pass; empty if none does.
        is_forced: Whether it goes without a drain.
    """

    scale: Scale
    operation: Operation | None = None
    record: ScaleDownRecord | None = None
    calls: tuple[BrokerCall, ...] = ()
    problem: str = ""
    shrinks: str = ""
    is_forced: bool = False


def next_step(
    observed: Observed, live: Mapping[str, Any] | None, *, is_kept_asleep: bool = False
) -> DrainStep:
    """Decide what is done about brokers that are too many.

    Args:
        observed: What was found.
        live: The StatefulSet; None if it is not there.
        is_kept_asleep: Whether brokers sleep on that are asked for; those that are too many leave
            when they have been woken.
    """
    broker = observed.broker
    members = scaling.members_of(broker, live)
    wanted = scaling.scale(broker, live, is_kept_asleep=is_kept_asleep)
    if scaling.is_asleep(broker) or is_kept_asleep:
        return DrainStep(scale=wanted)
    returns = tuple(_returns(observed, broker.spec.replicas))
    if members <= broker.spec.replicas:
        return DrainStep(scale=wanted, calls=returns)
    leaving = members - 1
    stays = Scale(members, members)
    state = _look(observed, leaving)
    operation = Operation(
        type=SCALE_DOWN,
        step=SHRINK if state.record is not None else DRAIN,
        target=names.pod(broker.metadata.name, leaving),
        message=state.sentence,
    )
    if state.record is None:
        return DrainStep(
            scale=stays,
            operation=operation,
            calls=(*returns, *state.calls),
            problem=state.problem,
        )
    kept = broker.status.scale_down
    is_noted = kept is not None and (kept.target, kept.step) == (operation.target, SHRINK)
    if not is_noted:
        return DrainStep(scale=stays, operation=operation, record=state.record, calls=returns)
    return DrainStep(
        scale=Scale(leaving, leaving, keeps_claims=state.record.forced),
        operation=operation,
        calls=returns,
        shrinks=state.sentence,
        is_forced=state.record.forced,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """What is to be said and done about the broker that leaves."""

    sentence: str
    problem: str = ""
    calls: tuple[BrokerCall, ...] = ()
    record: ScaleDownRecord | None = None


def _look(observed: Observed, leaving: int) -> _Look:
    broker = observed.broker
    name = names.pod(broker.metadata.name, leaving)
    receiver = names.pod(broker.metadata.name, leaving % broker.spec.replicas)
    if broker.spec.scale_down.force:
        return _Look(
            sentence=f"{name} goes without being drained, as spec.scaleDown.force asks; what it "
            "holds stays in its claims.",
            record=ScaleDownRecord(broker=name, forced=True),
        )
    if _never_had_data(observed, leaving):
        return _Look(
            sentence=f"{name} goes: its volumes were never bound, so it holds nothing.",
            record=ScaleDownRecord(broker=name),
        )
    pod = _pod(observed, leaving)
    answer = observed.drains.get(name)
    if pod is None or answer is None:
        said = "it does not run" if pod is None else pods.waits_for(pod) or "it does not answer"
        return _waits(
            f"{name} cannot be drained now: {said.rstrip('.')}. What it holds is in its claims; it "
            "is drained as soon as it runs, or set spec.scaleDown.force."
        )
    if answer.is_empty:
        return _Look(
            sentence=f"{name} was drained into {receiver} and holds nothing any more; it goes.",
            record=ScaleDownRecord(broker=name, target=receiver, messages=answer.moved),
        )
    if answer.phase == "draining":
        said = f" {answer.reason}" if answer.reason else ""
        return _Look(
            sentence=f"{name} is drained into {receiver}: {answer.moved} messages moved, "
            f"{answer.messages_left} left.{said}",
            # It does not get through: it is told what the receiver's certificate is now.
            calls=_start(observed, pod, leaving) if answer.reason else (),
        )
    if not observed.credentials.admin_password:
        return _waits(
            f"{name} cannot be drained: the Secret of spec.auth.secretName has no password of "
            f"`{names.ADMIN_USER}`. Add it, or set spec.scaleDown.force."
        )
    to = _pod(observed, leaving % broker.spec.replicas)
    if to is None or not pods.is_ready(to):
        return _waits(f"{name} waits for {receiver}, which is to take its messages, to be ready.")
    calls = _start(observed, pod, leaving)
    if not calls:
        return _waits(
            f"{name} waits for {receiver}, whose certificate cannot be known: see the condition "
            "CertificateValid. If spec.admin.tls named another Secret before, it waits for the "
            "restart with the new one."
        )
    if answer.phase == "failed":
        said = answer.reason or "its log says why"
        return _Look(sentence=f"{name}: {said}", problem=f"{name}: {said}", calls=calls)
    return _Look(sentence=f"{name} is about to be drained into {receiver}.", calls=calls)


def _start(observed: Observed, pod: Pod, leaving: int) -> tuple[BrokerCall, ...]:
    """Return what begins the drain of a broker, or renews what it is told; nothing if it can't."""
    broker = observed.broker
    to = _pod(observed, leaving % broker.spec.replicas)
    port = None if to is None else admin_port(broker, to, observed.tls_secrets)
    if to is None or port is None:
        return ()
    scheme = "http" if port.trust is None else "https"
    host = f"{pods.name(to)}.{names.headless_service(broker.metadata.name)}"
    # By a name that outlives the pod.
    target = f"{scheme}://{host}.{broker.metadata.namespace}.svc:{port.number}"
    return (StartDrain(pod=pod, target=target, trust=port.trust),)


def _waits(sentence: str) -> _Look:
    return _Look(sentence=sentence, problem=sentence)


def _returns(observed: Observed, wanted: int) -> list[BrokerCall]:
    """Return what lets brokers take clients again that were to leave and are to stay."""
    return [
        EndDrain(pod=pod)
        for pod in observed.pods
        if pods.ordinal(pod) < wanted
        and (answer := observed.drains.get(pods.name(pod))) is not None
        and answer.phase != "none"
    ]


def _pod(observed: Observed, ordinal: int) -> Pod | None:
    return next((pod for pod in observed.pods if pods.ordinal(pod) == ordinal), None)


def _never_had_data(observed: Observed, ordinal: int) -> bool:
    """Whether no volume of a broker was ever bound: then it never wrote anything."""
    broker = observed.broker
    if broker.spec.storage.ephemeral:
        return False
    claims = (
        observed.claims.get(names.claim(broker.metadata.name, volume, ordinal))
        for volume in volumes_of(broker)
    )
    return not any((claim.get("spec") or {}).get("volumeName") for claim in claims if claim)
