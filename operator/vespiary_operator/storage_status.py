"""What is known about volumes, the journal's engine and the node, as conditions and numbers.

Owns: `StorageVerified`, `JournalEngine`, `NodeTuned`, `status.brokers[].volumes[]`, and the part
that a full disk has in Degraded. Pure.
Never: looks at a volume (the verification in the pod does). Called by: `status`, `reconciler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vespiary_operator import adoption, pods, volume_space
from vespiary_operator.builders.pod_template import roles_of, shared_volume
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding
from vespiary_operator.observation import Observed, Space
from vespiary_operator.plan import Plan
from vespiary_spec import configuration, filesystems
from vespiary_spec.resources import Broker
from vespiary_spec.status import VerdictLevel, VolumeStatus
from vespiary_spec.verification import Verification

PRODUCERS_WAIT = "ProducersWait"

Answers = Mapping[str, Verification | None]
"""What each pod's verification said; None as long as it has not."""


_NO_SPACES: Mapping[str, Space] = {}


def volumes(
    answer: Verification, broker: Broker, pod: str = "", spaces: Mapping[str, Space] = _NO_SPACES
) -> tuple[VolumeStatus, ...]:
    """Return the volumes of one pod as the status has them.

    Args:
        answer: What its verification said.
        broker: The Broker.
        pod: Its name.
        spaces: How full its volumes are now, by name.
    """
    found = []
    known = {
        volume.name: volume
        for instance in broker.status.brokers
        if instance.name == pod
        for volume in instance.volumes
    }
    roles = roles_of(broker)
    for volume in answer.volumes:
        plain: dict[str, Any] = msgspec.structs.asdict(volume)
        del plain["adopted"], plain["may_adopt"]
        plain["path"] = volume.path or f"{configuration.VOLUME_ROOT}/{volume.name}"
        if broker.spec.storage.ephemeral:
            plain["dedicated"] = None
        if volume.name in roles:
            plain["shares_with"] = shared_volume(broker, volume.name)
        plain |= volume_space.steady(
            known.get(volume.name),
            spaces.get(volume.name),
            broker.spec.config,
        )
        found.append(VolumeStatus(**plain))
    return tuple(found)


def summary(plan: Plan, answers: Mapping[str, Verification | None]) -> str:
    """Return the column: the volume that was refused, or the filesystems."""
    for item in plan.declared:
        if item.verdict.is_denied:
            word = "refused" if item.reason == "VolumeRefused" else item.reason
            return f"{item.volume}: {word}"
    given = [answer for answer in answers.values() if answer is not None]
    for answer in given:
        for volume in answer.volumes:
            if volume.verdict is VerdictLevel.DENY:
                return f"{volume.name}: {volume.filesystem or 'refused'}"
    return ", ".join(sorted({v.filesystem for a in given for v in a.volumes if v.filesystem}))


def verified(observed: Observed, plan: Plan, answers: Answers) -> Finding:
    """Return what is known about the volumes, by declaration and from inside the pods."""
    denied = next((item for item in plan.declared if item.verdict.is_denied), None)
    if denied is not None:
        return FALSE, denied.reason, denied.verdict.sentence
    given = [(name, answer) for name, answer in answers.items() if answer is not None]
    for name, answer in given:
        if answer.refusal:
            volumes = [v for v in answer.volumes if v.verdict is VerdictLevel.DENY]
            reason = "VolumeRefused" if volumes else "Refused"
            ordinal = next((pods.ordinal(p) for p in observed.pods if pods.name(p) == name), -1)
            how = adoption.hint(observed, ordinal, answer)
            # Of two volumes that were swapped, or all of one class, each is to be put right.
            sentences = dict.fromkeys((answer.refusal, *(v.reason for v in volumes if v.reason)))
            return FALSE, reason, f"{name}: {' '.join(sentences)}{how}"
    warnings = [item.verdict.sentence for item in plan.declared]
    warnings += [
        volume.reason
        for _, answer in given
        for volume in answer.volumes
        if volume.verdict is VerdictLevel.WARN and volume.reason
    ]
    if len(given) < observed.broker.spec.replicas or not given:
        said = ["Not every broker has looked at its volumes yet.", *warnings]
        return UNKNOWN, "NotVerifiedYet", " ".join(dict.fromkeys(said))
    overridden = _overridden(observed.broker, given)
    if overridden:
        return TRUE, "FilesystemOverridden", " ".join(dict.fromkeys(warnings))
    if warnings:
        return TRUE, "VerifiedWithWarnings", " ".join(dict.fromkeys(warnings))
    if not any(answer.volumes for _, answer in given):
        return TRUE, "NothingToVerify", "Nothing is kept on a disk: persistence is switched off."
    return TRUE, "Verified", "Every volume was looked at from inside its pod and is fine."


def _overridden(broker: Broker, given: list[tuple[str, Verification]]) -> list[tuple[str, str]]:
    """Return volumes, with their filesystem, that only the Broker's policy takes."""
    policy = broker.spec.storage.filesystem_policy
    return [
        (volume.name, volume.filesystem)
        for _, answer in given
        for volume in answer.volumes
        if filesystems.is_overridden(volume.filesystem, policy)
    ]


def engine(observed: Observed, answers: Answers) -> Finding:
    """Return whether the journals are written as asked."""
    asked = observed.broker.spec.config.journal_type
    if not observed.broker.spec.config.persistence_enabled:
        return TRUE, "InMemory", "Nothing is kept on a disk, as persistenceEnabled: false asks."
    found: list[tuple[str, str, str]] = []
    for name, answer in answers.items():
        said = observed.answers.get(name)
        engine = (said.engine if said else "") or (answer.engine if answer else "")
        if engine:
            found.append((name, engine, answer.engine_reason if answer else ""))
    for name, engine, reason in found:
        if engine.upper() != asked.value:
            why = reason or f"{engine} is used instead of {asked.value}."
            return FALSE, "Fallback", f"{name}: {why}"
    if not found:
        return UNKNOWN, "NotKnownYet", "No broker has said which engine it uses."
    return TRUE, "AsAsked", f"The journal is written by {asked.value}, as asked."


def node_tuned(observed: Observed, answers: Answers) -> Finding:
    """Return whether `fs.aio-max-nr` left room for every broker."""
    settings = observed.broker.spec.config
    if not settings.journal_type.may_use_aio or not settings.persistence_enabled:
        return TRUE, "NotNeeded", "The journal does not use asynchronous I/O."
    waiting = {pods.name(pod) for pod in observed.pods if pods.is_waiting_for_aio(pod)}
    known = 0
    for name, answer in answers.items():
        if answer is None or answer.aio.max_nr is None or answer.aio.nr is None:
            continue
        known += 1
        if name in waiting:
            return FALSE, "AioShortage", f"{name}: {answer.waits}"
        if not answer.aio.is_enough and not answer.waits:
            free = max(0, answer.aio.max_nr - answer.aio.nr)
            return (
                FALSE,
                "AioShortage",
                f"{name}: {answer.aio.demand} AIO requests are needed on its node and {free} of "
                f"fs.aio-max-nr={answer.aio.max_nr} were free (fs.aio-nr={answer.aio.nr}). Let a "
                "BrokerNodeTuning with mode Raise set it, or lower spec.config.journalMaxIo; then "
                "restart the pod.",
            )
    if not known:
        return UNKNOWN, "NotKnownYet", "No broker has looked at fs.aio-max-nr yet."
    return TRUE, "Enough", "fs.aio-max-nr left room for every broker."


def producers_wait(observed: Observed) -> Finding | None:
    """Return what Degraded says of journals without room; None if all have some."""
    for name, said in sorted(observed.answers.items()):
        if said.journal_blocked_reason:
            return (
                TRUE,
                PRODUCERS_WAIT,
                f"{name} has its producers wait, consumers go on: {said.journal_blocked_reason} "
                "A volume is enlarged by spec.storage.volumes.",
            )
    return None
