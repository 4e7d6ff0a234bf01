"""Volumes that a person told a Broker to adopt: blank ones beside full ones, and foreign ones.

The annotation `vespiary.dev/adopt-volume` names a claim and the PersistentVolume under it, so that
nothing else can be meant. What is asked reaches the verification in the pod through a file of that
broker alone. It holds once: what was adopted is noted in the status and taken out of the file.

Owns: the annotation, what of it is still to be done, and the records.
Never: touches a volume; the stamp is the verification's. Called by: `plan`, `children`, `status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vespiary_operator import names, pods
from vespiary_operator.builders.pod_template import roles_of, shared_volume, volumes_of
from vespiary_operator.observation import Observed
from vespiary_spec.adoption_status import ADOPTIONS_MAX, AdoptionRecord
from vespiary_spec.resources import Broker
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import Verification

ANNOTATION = "vespiary.dev/adopt-volume"


class Asked(NamedTuple):
    """One volume that is to be adopted.

    Attributes:
        claim: Its claim.
        persistent_volume: What the claim has to be bound to.
        ordinal: The broker whose volume it is.
        roles: Kinds of data on it.
    """

    claim: str
    persistent_volume: str
    ordinal: int
    roles: tuple[str, ...]


def asked(broker: Broker) -> tuple[tuple[Asked, ...], tuple[str, ...]]:
    """Return what the annotation asks for, and what of it cannot be understood, in sentences."""
    found, wrong = [], []
    for entry in filter(None, broker.metadata.annotations.get(ANNOTATION, "").split(",")):
        claim, _, volume = (part.strip() for part in entry.partition("="))
        where = _place(broker, claim)
        if where is None or not volume:
            wrong.append(
                f"The annotation {ANNOTATION} has {entry.strip()!r}, which is no claim of this "
                f"Broker with its PersistentVolume. Write CLAIM=VOLUME, such as "
                f"{names.claim(broker.metadata.name, 'journal', 0)}=pvc-1234."
            )
            continue
        own, ordinal = where
        roles = (own, *(role for role in roles_of(broker) if shared_volume(broker, role) == own))
        found.append(Asked(claim, volume, ordinal, roles))
    return tuple(found[:ADOPTIONS_MAX]), tuple(wrong)


def _place(broker: Broker, claim: str) -> tuple[str, int] | None:
    """Return volume and ordinal of a claim; None if it is not one of this Broker."""
    for volume in volumes_of(broker):
        number = claim.removeprefix(names.claim(broker.metadata.name, volume, 0)[:-1])
        if number != claim and number.isdecimal():
            return volume, int(number)
    return None


def pending(observed: Observed) -> dict[int, dict[str, str]]:
    """Return what verifications should adopt: the claim by kind of data, by ordinal."""
    done = {(record.claim, record.persistent_volume) for record in observed.broker.status.adoptions}
    found: dict[int, dict[str, str]] = {}
    for each in asked(observed.broker)[0]:
        is_bound = _bound_to(observed, each.claim) == each.persistent_volume
        if is_bound and (each.claim, each.persistent_volume) not in done:
            found.setdefault(each.ordinal, {}).update(dict.fromkeys(each.roles, each.claim))
    return found


def problems(observed: Observed) -> Iterator[str]:
    """Yield why something that the annotation asks for is not done, a sentence each."""
    found, wrong = asked(observed.broker)
    yield from wrong
    for each in found:
        bound = _bound_to(observed, each.claim)
        if bound is not None and bound != each.persistent_volume:
            yield (
                f"The annotation {ANNOTATION} names {each.claim} on {each.persistent_volume}, and "
                f"that claim is bound to {bound or 'nothing yet'}; nothing is adopted."
            )


def _bound_to(observed: Observed, claim: str) -> str | None:
    """Return the PersistentVolume under a claim; None if there is no such claim."""
    found = observed.claims.get(claim)
    return None if found is None else str((found.get("spec") or {}).get("volumeName", ""))


def records(observed: Observed, now: str) -> tuple[AdoptionRecord, ...]:
    """Return what was adopted; what the annotation no longer names is forgotten.

    Args:
        observed: What was found.
        now: The time, RFC 3339.
    """
    before = {(r.claim, r.persistent_volume): r for r in observed.broker.status.adoptions}
    answers = {pods.ordinal(pod): pods.verified(pod) for pod in observed.pods}
    found = []
    for each in asked(observed.broker)[0]:
        known = before.get((each.claim, each.persistent_volume))
        if known is not None:
            found.append(known)
            continue
        if _bound_to(observed, each.claim) != each.persistent_volume:
            continue
        said = _outcome(each, answers.get(each.ordinal))
        if said:
            found.append(
                AdoptionRecord(
                    claim=each.claim,
                    persistent_volume=each.persistent_volume,
                    at=now,
                    message=said,
                )
            )
    return tuple(found)


def _outcome(each: Asked, answer: Verification | None) -> str:
    """Say what a verification did about a volume; empty as long as it refuses it."""
    if answer is None or answer.verdict is VerdictLevel.DENY:
        return ""
    looked = [volume for volume in answer.volumes if volume.name in each.roles]
    if not looked:
        return ""
    if any(volume.adopted for volume in looked):
        return (
            f"Broker {each.ordinal} adopted the volume of {each.claim} on "
            f"{each.persistent_volume} as its {', '.join(each.roles)}."
        )
    return f"The volume of {each.claim} was that broker's already; there was nothing to adopt."


def hint(observed: Observed, ordinal: int, answer: Verification) -> str:
    """Say how a refused volume can be adopted; empty if it is refused for something else."""
    refused = next((volume.name for volume in answer.volumes if volume.may_adopt), "")
    broker = observed.broker
    if refused not in roles_of(broker):
        return ""
    volume = shared_volume(broker, refused) or refused
    claim = names.claim(broker.metadata.name, volume, ordinal)
    bound = _bound_to(observed, claim)
    if not bound:
        return ""
    # Adopted are all or none: what else is asked for has to stand there still.
    waiting = {each for by_role in pending(observed).values() for each in by_role.values()}
    entries = [f"{each}={_bound_to(observed, each)}" for each in sorted(waiting - {claim})]
    value = ",".join((f"{claim}={bound}", *entries))
    return (
        f" To adopt it: kubectl -n {broker.metadata.namespace} annotate broker "
        f"{broker.metadata.name} --overwrite {ANNOTATION}={value}"
    )
