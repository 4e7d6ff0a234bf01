"""Where an upgrade stands, and what a change of it would do: from a Broker alone. Pure.

Owns: the sentences of `kubectl vespiary upgrade` and the patches that it sends.
Never: talks to the API server. Called by: `upgrade_command`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vespiary_operator import maintenance, upgrade_refusal
from vespiary_operator.kubectl.explanation import Document, conditions
from vespiary_spec.resources import Broker, UpgradeStrategy
from vespiary_spec.upgrade_status import UpgradeStage as Stage

_FAILED = (Stage.REFUSED, Stage.ROLLING_BACK, Stage.ROLLED_BACK, Stage.HALTED)
_AT_REST = (Stage.REFUSED, Stage.ROLLED_BACK, Stage.COMPLETE)


class NotPossibleError(Exception):
    """Why a change cannot be asked for now, as one sentence."""


class Gate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One stage of the way.

    Attributes:
        stage: Its name.
        state: `passed`, `now`, `waits` or `failed`.
        sentence: What it waits for; empty unless it is the one where the upgrade stands.
    """

    stage: str
    state: str
    sentence: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where an upgrade stands.

    Attributes:
        name: The Broker.
        namespace: Its namespace.
        stage: Stage of the upgrade; empty if there was none.
        good: Whether nothing was refused, taken back or halted.
        from_version: Version before, or its image.
        to_version: Version that is wanted, or its image.
        revision: What `approve` names.
        since: Since when it stands there.
        canary: The broker that has the new version first; empty if nothing is under way.
        gates: The whole way.
        sentence: Where it stands and why.
        paused_by: What stops every change; empty if nothing does.
        next: Command that comes next; empty if there is nothing to do.
    """

    name: str
    namespace: str
    stage: str
    good: bool
    from_version: str = ""
    to_version: str = ""
    revision: str = ""
    since: str = ""
    canary: str = ""
    gates: tuple[Gate, ...] = ()
    sentence: str = ""
    paused_by: str = ""
    next: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is about to be asked for.

    Attributes:
        lines: What will happen, one sentence each.
        patch: The merge patch.
    """

    lines: tuple[str, ...]
    patch: Document


def view(document: Document) -> View:
    """Say where an upgrade stands.

    Args:
        document: The Broker as the API server has it.
    """
    broker = Broker.from_dict(document)
    name, namespace = broker.metadata.name, broker.metadata.namespace or ""
    found = broker.status.upgrade
    up_to_date = conditions(document).get("UpToDate") or {}
    is_observed = broker.status.observed_generation == broker.metadata.generation
    paused_by = maintenance.paused_by(broker)
    if found is None:
        sentence = str(up_to_date.get("message", ""))
        if not is_observed:
            sentence = "The operator has yet to look at the newest spec."
        return View(
            name=name,
            namespace=namespace,
            stage="",
            good=True,
            sentence=sentence,
            paused_by=paused_by,
        )
    has_first = found.stage not in _AT_REST and broker.spec.replicas > 0
    return View(
        name=name,
        namespace=namespace,
        stage=found.stage.value,
        good=found.stage not in _FAILED,
        from_version=found.from_version or found.from_image,
        to_version=found.to_version or found.to_image,
        revision=found.revision,
        since=found.stage_since,
        canary=f"{name}-{broker.spec.replicas - 1}" if has_first else "",
        gates=_gates(broker, found.stage, found.message),
        sentence=upgrade_refusal.sentence(found),
        paused_by=paused_by,
        next=_next(broker, found.stage, paused_by),
    )


def _gates(broker: Broker, stage: Stage, sentence: str) -> tuple[Gate, ...]:
    """Return the way to the end, with where the upgrade stands."""
    way = [Stage.CHECKING]
    strategy = broker.spec.upgrade.strategy
    if strategy is not UpgradeStrategy.ROLLING_UPDATE or stage in (Stage.CANARY, Stage.SOAKING):
        way += [Stage.CANARY, Stage.SOAKING]
    if strategy is UpgradeStrategy.SUPERVISED or stage is Stage.AWAITING_APPROVAL:
        way.append(Stage.AWAITING_APPROVAL)
    way += [Stage.ROLLING, Stage.COMPLETE]
    if stage is Stage.COMPLETE:
        return tuple(Gate(stage=each.value, state="passed") for each in way)
    if stage is Stage.REFUSED:
        way[0] = Stage.REFUSED
    elif stage in _FAILED:
        # How far it came before is not in the status.
        return (Gate(stage=stage.value, state="failed", sentence=sentence),)
    at = way.index(stage)
    return tuple(
        Gate(stage=each.value, state="passed")
        if place < at
        else Gate(stage=each.value, state="waits")
        if place > at
        else Gate(
            stage=each.value,
            state="failed" if stage is Stage.REFUSED else "now",
            sentence=sentence,
        )
        for place, each in enumerate(way)
    )


def _next(broker: Broker, stage: Stage, paused_by: str) -> str:
    name, namespace = broker.metadata.name, broker.metadata.namespace
    command = f"kubectl vespiary -n {namespace} upgrade {name}"
    if paused_by:
        return f"{command} --resume"
    if stage is Stage.AWAITING_APPROVAL:
        return f"{command} --approve    # or --back"
    if stage is Stage.REFUSED:
        return f"{command} --back    # or another --to, or --retry; see the sentence"
    if stage is Stage.ROLLED_BACK:
        return f"{command} --retry    # when it is put right; or --back, or another --to"
    if stage is Stage.HALTED:
        return f"{command} --to VERSION    # one that reads the files, or restore the copy"
    if stage is Stage.COMPLETE:
        return ""
    timeout = f"{broker.spec.upgrade.deadline + 600}s"
    return f"kubectl -n {namespace} wait --for=condition=UpToDate broker/{name} --timeout={timeout}"


# --- changes --------------------------------------------------------------------------------------


def start(document: Document, *, version: str = "", image: str = "") -> Change:
    """Return what asks for another version.

    Args:
        document: The Broker.
        version: The version; empty if an image is named.
        image: The image; empty if a version is named.

    Raises:
        NotPossibleError: It is asked for already, or an image stands in the way of a version.
    """
    broker = Broker.from_dict(document)
    if version and broker.spec.image:
        raise NotPossibleError(
            f"spec.image is {broker.spec.image} and goes before spec.version: give --image"
        )
    if (image and image == broker.spec.image) or (version and version == broker.spec.version):
        raise NotPossibleError(
            f"the Broker asks for {image or version} already; --retry tries a version again that "
            "was taken back"
        )
    wanted = image or version
    return _spec_change(document, "image" if image else "version", wanted, _course(broker, wanted))


def _course(broker: Broker, wanted: str) -> tuple[str, ...]:
    """Return what the operator will do, one sentence each."""
    upgrade, replicas = broker.spec.upgrade, broker.spec.replicas
    has = broker.status.version or broker.status.image or "what it has"
    lines = [f"{broker.metadata.name} goes from {has} to {wanted}: {_count(replicas)}."]
    lines.append(
        "First both images are asked for their formats of files, and every broker has to be "
        "healthy; if a check says no, nothing is changed."
    )
    if not upgrade.allow_format_change:
        lines.append("A version that changes the format of files is refused (allowFormatChange).")
    if replicas and upgrade.strategy is UpgradeStrategy.ROLLING_UPDATE:
        lines.append("Then one broker after the other, each when the one before is healthy.")
    elif replicas and upgrade.strategy is not UpgradeStrategy.PAUSED:
        lines.append(
            f"{broker.metadata.name}-{replicas - 1} is the first, and is watched for "
            f"{upgrade.soak_time} s."
        )
        if upgrade.strategy is UpgradeStrategy.SUPERVISED:
            lines.append("Then it waits for --approve (strategy Supervised).")
        if replicas > 1:
            lines.append("The others follow one by one.")
    lines.append(
        f"If a broker is unhealthy with it for {upgrade.deadline} s, the version before comes back."
    )
    lines += _held(broker)
    return tuple(lines)


def _count(replicas: int) -> str:
    return "1 broker" if replicas == 1 else f"{replicas} brokers"


def _held(broker: Broker) -> list[str]:
    """Return what keeps brokers from being restarted."""
    held = []
    if by := maintenance.paused_by(broker):
        held.append(f"Nothing happens while {by} is true.")
    if broker.spec.upgrade.strategy is UpgradeStrategy.PAUSED:
        held.append("No broker is restarted while spec.upgrade.strategy is Paused.")
    if broker.spec.maintenance_windows:
        held.append("Brokers are restarted only in spec.maintenanceWindows.")
    return held


def back(document: Document) -> Change:
    """Return what asks for the version before.

    Raises:
        NotPossibleError: It is not known, or files may have a format that it does not read.
    """
    broker = Broker.from_dict(document)
    found = broker.status.upgrade
    if found is None or not found.from_image:
        raise NotPossibleError("there was no upgrade, so no version before is known: give --to")
    if found.format_change and found.journal_opened:
        raise NotPossibleError(
            f"files may have a format that {found.from_version or found.from_image} does not read; "
            "restore the copy that was made before (docs/howto/upgrades.md), or give another --to"
        )
    repository, _, tag = found.from_image.rpartition(":")
    is_version = not broker.spec.image and found.to_image.rpartition(":")[0] == repository
    field, wanted = ("version", tag) if is_version else ("image", found.from_image)
    if getattr(broker.spec, field) == wanted:
        raise NotPossibleError(f"the Broker asks for {wanted} already")
    lines = [f"{broker.metadata.name} goes back to {wanted}, which it had before: no canary."]
    if found.stage in (Stage.REFUSED, Stage.ROLLED_BACK):
        lines = [f"{broker.metadata.name} asks for {wanted} again, which its brokers have."]
    elif found.stage is Stage.COMPLETE:
        lines = list(_course(broker, wanted))
    return _spec_change(document, field, wanted, tuple(lines))


def approve(document: Document) -> Change:
    """Return what lets the other brokers follow.

    Raises:
        NotPossibleError: Nothing waits for it.
    """
    broker = Broker.from_dict(document)
    found = broker.status.upgrade
    if found is None or found.stage is not Stage.AWAITING_APPROVAL:
        stands = "there is no upgrade" if found is None else f"the upgrade is {found.stage.value}"
        raise NotPossibleError(f"nothing waits to be approved: {stands}")
    said = f"The other brokers get {found.to_version or found.to_image}, one after the other."
    lines = (said, *_held(broker))
    return _annotated(document, maintenance.ANNOTATION_APPROVE, found.revision, lines)


def retry(document: Document, now: str) -> Change:
    """Return what tries a version again that was taken back or refused.

    Raises:
        NotPossibleError: None was.
    """
    broker = Broker.from_dict(document)
    found = broker.status.upgrade
    if found is None or found.stage not in (Stage.ROLLED_BACK, Stage.REFUSED):
        stands = "there was no upgrade" if found is None else f"the upgrade is {found.stage.value}"
        raise NotPossibleError(f"no version was taken back or refused: {stands}")
    lines = _course(broker, found.to_version or found.to_image)
    return _annotated(document, maintenance.ANNOTATION_RETRY, now, lines)


def pause(document: Document) -> Change:
    """Return what stops every change.

    Raises:
        NotPossibleError: It is stopped already.
    """
    if by := maintenance.paused_by(Broker.from_dict(document)):
        raise NotPossibleError(f"it is paused already, by {by}")
    lines = ("The operator changes nothing more; brokers go on, and the status is reported.",)
    return _annotated(document, maintenance.ANNOTATION_PAUSED, "true", lines)


def resume(document: Document) -> Change:
    """Return what lets changes go on.

    Raises:
        NotPossibleError: It is not paused, or by what is for whoever writes the spec.
    """
    broker = Broker.from_dict(document)
    if broker.spec.paused:
        raise NotPossibleError("spec.paused is true: take it out where the Broker is written")
    if not maintenance.paused_by(broker):
        raise NotPossibleError("it is not paused")
    said = "The operator goes on where it stood."
    return _annotated(document, maintenance.ANNOTATION_PAUSED, None, (said, *_held_but(broker)))


def _held_but(broker: Broker) -> list[str]:
    return [line for line in _held(broker) if not line.startswith("Nothing happens")]


def _spec_change(document: Document, field: str, value: str, lines: tuple[str, ...]) -> Change:
    metadata = {"resourceVersion": document["metadata"]["resourceVersion"]}
    return Change(lines=lines, patch={"metadata": metadata, "spec": {field: value}})


def _annotated(document: Document, name: str, value: Any, lines: tuple[str, ...]) -> Change:
    version = document["metadata"]["resourceVersion"]
    return Change(
        lines=lines,
        patch={"metadata": {"resourceVersion": version, "annotations": {name: value}}},
    )
