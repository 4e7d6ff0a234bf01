"""What has to hold before a new version reaches the first broker.

Owns: the checks, in their order: whether anything is under way, brokers and volumes that are
well, what the images say about formats of files, and room for the copy where these change.
Never: changes anything but the pod that asks the images. Called by: `upgrade`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vespiary_operator import kinds, maintenance, names, pods, templates
from vespiary_operator.actions import Action, Create, deletion
from vespiary_operator.builders import compatibility_pod
from vespiary_operator.builders.pod_template import shared_volume
from vespiary_operator.observation import Observed
from vespiary_operator.pods import Pod
from vespiary_operator.templates import Kept
from vespiary_spec import compatibility
from vespiary_spec.compatibility import Compatibility, FormatMove
from vespiary_spec.errors import ConfigError
from vespiary_spec.status import VerdictLevel
from vespiary_spec.units import format_size_rounded

RESERVED_PART = 20
"""One such part of a filesystem may be kept for root: it is neither used by files nor free."""


class Checked(NamedTuple):
    """What was found.

    Attributes:
        is_passed: Whether every check says yes.
        reason: One word, where one does not.
        sentence: Which one, and what to do.
        is_refusal: Whether an image was asked and says no; otherwise it is waited for.
        is_asking: Whether images are being asked.
        actions: What has to be done to find out.
        moves: Kinds of files that get a format which the version before does not read.
        from_version: Version before, as its image says; empty if it was not asked.
        to_version: Version that is wanted, as its image says.
    """

    is_passed: bool
    reason: str = ""
    sentence: str = ""
    is_refusal: bool = False
    is_asking: bool = False
    actions: tuple[Action, ...] = ()
    moves: tuple[FormatMove, ...] = ()
    from_version: str = ""
    to_version: str = ""


def _waits(reason: str, sentence: str) -> Checked:
    return Checked(False, reason, sentence)


def _asks(sentence: str, *actions: Action) -> Checked:
    return Checked(False, "AskingImages", sentence, is_asking=True, actions=actions)


def checked(
    observed: Observed, kept: Kept, image: str, *, pull_policy: str, hold: str = ""
) -> Checked:
    """Check whether an upgrade may begin.

    Args:
        observed: What was found.
        kept: The templates so far.
        image: The image that is wanted.
        pull_policy: When it is pulled.
        hold: Why no broker may be restarted for it now; empty if one may.
    """
    if hold:
        return _waits("RestartsHeld", hold)
    for pod in observed.pods:
        ill = _illness(pod, observed)
        if ill:
            return _waits("BrokersUnhealthy", f"The upgrade waits for {pods.name(pod)}: {ill}")
    before = opened_images(observed.pods, kept)
    if is_copy_restored(observed, kept):
        # The files are those of the copy again. A version that does not read them says so.
        before = set()
    return _formats(observed, before - {image}, image, pull_policy=pull_policy)


def is_copy_restored(observed: Observed, kept: Kept) -> bool:
    """Return whether the copy that was made before the last version was put back, and is shut."""
    restored = maintenance.restored_snapshot(observed.broker)
    return bool(kept.snapshot) and restored == kept.snapshot and not observed.pods


def opened_images(running: Iterable[Pod], kept: Kept) -> set[str]:
    """Return the images that may have written files: those with which a broker began to run.

    One that could not be pulled has written none, and need not be asked.
    """
    images = {templates.image_of(pod) for pod in running if pods.has_begun(pod)}
    if kept.has_run:
        images.add(kept.image)
    if kept.before is not None:
        images.add(templates.image_of(kept.before))
    return images - {""}


def _illness(pod: Pod, observed: Observed) -> str:
    """Return why a broker is not well; empty if it is, or if a new version may be the cure."""
    answer = observed.answers.get(pods.name(pod))
    if answer is not None and answer.journal_failed_reason:
        return f"it fenced its journal: {answer.journal_failed_reason}"
    if not pods.is_ready(pod) and not pods.is_stuck(pod):
        return pods.waits_for(pod)
    verified = pods.verified(pod)
    if verified is not None and verified.verdict is VerdictLevel.DENY:
        return verified.refusal
    return ""


def _formats(observed: Observed, before: set[str], image: str, *, pull_policy: str) -> Checked:
    """Ask the images, and compare what they say."""
    wanted = compatibility_pod.pod(observed.broker, {*before, image}, pull_policy=pull_policy)
    name = wanted["metadata"]["name"]
    found = next((pod for pod in observed.checks if pods.name(pod) == name), None)
    if found is None:
        sentence = f"The pod {name} asks {image} which formats of files it reads and writes."
        return _asks(sentence, Create(manifest=wanted, reason="Checking", sentence=sentence))
    if pods.is_terminating(found):
        return _asks(f"The pod {name} is being deleted and made anew.")
    if _is_late(found):
        return _asks(
            f"The pod {name} could not be started in time and is made anew.",
            deletion(kinds.POD, found, "it could not be started in time."),
        )
    said: dict[str, Compatibility] = {}
    for asked in (*sorted(before), image):
        message = _termination(found, compatibility_pod.container_of(asked))
        if message is None:
            where = pods.waits_for(found)
            return _asks(f"The pod {name} asks {asked}. {where}".strip())
        try:
            said[asked] = compatibility.decode(message)
        except ConfigError as error:
            return Checked(
                False, "ImageSaysNothing", f"{asked} cannot be judged: {error}", is_refusal=True
            )
    return _compared(observed, [said[one] for one in sorted(before)], said[image])


def _compared(observed: Observed, before: list[Compatibility], after: Compatibility) -> Checked:
    versions = ", ".join(sorted({one.version for one in before}))
    found = compatibility.compare_all(before, after)
    moves = ", ".join(map(str, found.moves))
    told = Checked(True, moves=found.moves, from_version=versions, to_version=after.version)
    if found.refusal:
        return told._replace(
            is_passed=False,
            is_refusal=True,
            reason="FormatUnreadable",
            sentence=f"{found.refusal} Nothing was changed. Choose a version that reads it.",
        )
    if found.moves and not observed.broker.spec.upgrade.allow_format_change:
        return told._replace(
            is_passed=False,
            is_refusal=True,
            reason="FormatChange",
            sentence=f"Version {after.version} changes the format of files "
            f"({moves}), which version {versions} does not read, so there is no way back by "
            "itself. Nothing was changed. Set spec.upgrade.allowFormatChange to true to take it: "
            "each broker's journals are copied first.",
        )
    short = _too_full_to_copy(observed) if found.moves else ""
    if short:
        return told._replace(is_passed=False, reason="NoRoomForCopy", sentence=short)
    return told


def _too_full_to_copy(observed: Observed) -> str:
    """Return which volume has no room for a copy of its files; empty if none is known to lack it.

    The copy looks for itself, to the byte, but only once a broker is down for it.
    """
    for pod in observed.pods:
        answer = observed.answers.get(pods.name(pod))
        for name, space in sorted((answer.spaces if answer is not None else {}).items()):
            reserved_bytes = space.size_bytes // RESERVED_PART
            used_bytes = space.size_bytes - space.free_bytes - reserved_bytes
            if space.free_bytes < used_bytes:
                owner = names.spec_name(shared_volume(observed.broker, name) or name)
                return (
                    f"The volume {name} of {pods.name(pod)} has no room for the copy of its files "
                    f"that is made before their format changes: {format_size_rounded(used_bytes)} "
                    f"are used and {format_size_rounded(space.free_bytes)} free. Nothing was "
                    f"changed. Make spec.storage.volumes.{owner}.size larger, have "
                    "consumers take messages, or remove earlier copies (vespiary journal "
                    "remove-snapshot)."
                )
    return ""


def _is_late(pod: Pod) -> bool:
    status = pod.get("status") or {}
    return status.get("phase") == "Failed" and status.get("reason") == "DeadlineExceeded"


def _termination(pod: Pod, container: str) -> str | None:
    """Return what a container left when it ended; None while it has not."""
    statuses: Iterable[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or ()
    for status in statuses:
        ended = (status.get("state") or {}).get("terminated")
        if status.get("name") == container and ended:
            return str(ended.get("message") or "")
    return None
