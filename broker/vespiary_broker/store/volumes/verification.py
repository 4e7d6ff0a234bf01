"""The verification of a broker's volumes, put together: judge, try, choose, identify.

Owns the order, which is the promise that a refused store is not touched: 1. mountinfo's verdict
on every volume, statfs as a cross-check; any refusal ends it here, and not one
   file was opened or made in any volume.
2. Folders that are missing are made, where that is allowed; then each volume is tried.
3. The journal engine is chosen from the trial of the journal's volume and the node's AIO numbers.
4. Identity stamps are compared, and written when all of them are good.

Blocks: up to two seconds for each filesystem; not for the event loop. Called by the command line
(`vespiary check`, `apply`, the init container) and by `app` before it opens the store.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from vespiary_broker.store.volumes import (
    aio_limits,
    block_device,
    engine_choice,
    identity,
    mountinfo,
    probe,
    sharing,
    statfs,
    trial,
)
from vespiary_broker.store.volumes.block_device import BlockDevice
from vespiary_broker.store.volumes.identity import Action
from vespiary_broker.store.volumes.mountinfo import Mount, MountinfoError
from vespiary_broker.store.volumes.probe import OpenRing
from vespiary_broker.store.volumes.report import Finding, Report, Stage, VolumeReport, worst
from vespiary_broker.store.volumes.request import JOURNAL, VerificationRequest, VolumeRequest
from vespiary_broker.store.volumes.shared_ring import SharedRing
from vespiary_broker.store.volumes.statfs import Statfs
from vespiary_broker.store.volumes.trial import Trial
from vespiary_spec import filesystems
from vespiary_spec.settings import JournalType
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import AioResult, VolumeResult, summarise


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the verification looks; the defaults are this machine.

    Attributes:
        read_mounts: Gives the mounts.
        read_statfs: Asks statfs(2) about a path.
        open_ring: Opens an AIO ring.
        open_uring: Opens an io_uring ring.
        now: Gives the time for new stamps, RFC 3339.
        sysfs: Where sysfs is mounted.
        sysctl_fs: Where `aio-nr` and `aio-max-nr` are.
    """

    read_mounts: Callable[[], tuple[Mount, ...]] = mountinfo.read
    read_statfs: Callable[[str], Statfs] = statfs.read
    open_ring: OpenRing = probe.open_native_ring
    open_uring: OpenRing = probe.open_native_uring
    now: Callable[[], str] = _utc_now
    sysfs: Path = Path("/sys")
    sysctl_fs: Path = aio_limits.FOLDER


class _Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One volume after step 1; `mount` and `space` are None where they could not be had."""

    volume: VolumeRequest
    path: str
    findings: tuple[Finding, ...]
    mount: Mount | None = None
    space: Statfs | None = None


THIS_MACHINE = Machine()


def verify(request: VerificationRequest, machine: Machine = THIS_MACHINE) -> Report:
    """Verify the volumes of one broker.

    Args:
        request: The question.
        machine: Where to look.

    Returns:
        The answer. Whatever is wrong with a volume is a sentence in it, not an exception. Its
        `answer` goes into the termination message, its `exit_code` ends the program.

    Durability: no file of the store is opened or changed. After a refusal by filesystem nothing at
    all was opened or made in any of the volumes; new stamps survive a power loss.
    """
    limits = aio_limits.read(request.aio_demand, folder=machine.sysctl_fs)
    judged = _judge_all(request, machine)
    reports = _describe(judged, machine)
    choice: engine_choice.EngineChoice | None = None
    refused_at = Stage.FILESYSTEM if _is_refused(reports) else None
    if refused_at is None:
        trials, reports = _try_all(request, judged, reports, machine)
        refused_at = Stage.TRIAL if _is_refused(reports) else None
        if refused_at is None and JOURNAL in trials:
            choice = engine_choice.choose(
                request.journal_type,
                direct=trials[JOURNAL].direct,
                aio=trials[JOURNAL].aio,
                uring=trials[JOURNAL].uring,
                limits=limits,
                is_strict=request.is_strict,
                waits_for_aio=request.waits_for_aio,
            )
            if choice.waits:
                reports = tuple(_without_aio(report) for report in reports)
            refused_at = Stage.ENGINE if choice.effective is None else None
    if refused_at is None and request.owner is not None:
        reports = _identify(request, request.owner, reports, machine)
        refused_at = Stage.IDENTITY if _is_refused(reports) else None
    answer = summarise(
        tuple(report.result for report in reports),
        AioResult(max_nr=limits.maximum, nr=limits.in_use, demand=limits.demand),
        engine=str(choice.effective) if choice is not None and choice.effective else "",
        engine_reason="" if choice is None or choice.is_as_asked else choice.reason,
        refusal=choice.reason if choice is not None and choice.effective is None else "",
        waits=choice.waits if choice is not None and refused_at is None else "",
    )
    return Report(answer=answer, volumes=reports, engine=choice, refused_at=refused_at)


def _without_aio(report: VolumeReport) -> VolumeReport:
    """Take back a trial that failed for lack of requests: it says nothing of the volume."""
    if report.result.aio is not False:
        return report
    return msgspec.structs.replace(report, result=msgspec.structs.replace(report.result, aio=None))


def _is_refused(reports: tuple[VolumeReport, ...]) -> bool:
    return any(report.result.verdict is VerdictLevel.DENY for report in reports)


def _conclude(report: VolumeReport, findings: tuple[Finding, ...]) -> VolumeReport:
    """Add findings to a report, and put verdict and reason in line with all of them."""
    together = report.findings + findings
    result = msgspec.structs.replace(
        report.result,
        verdict=worst(together),
        # A refusal's reason is the refusal; warnings beside it would only hide it.
        reason=" ".join(found.sentence for found in together if found.level is worst(together)),
    )
    return msgspec.structs.replace(report, findings=together, result=result)


# --- step 1: what is mounted there
# -----------------------------------------------------------------


def _judge_all(request: VerificationRequest, machine: Machine) -> tuple[_Judged, ...]:
    try:
        mounts = machine.read_mounts()
    except (MountinfoError, OSError) as error:
        sentence = (
            f"{mountinfo.MOUNTINFO_PATH} can't be read, so what is mounted is unknown: {error}"
        )
        return tuple(
            _Judged(
                volume=volume,
                path=volume.path,
                findings=(trial.deny(f"The volume {volume.name} can't be judged: {sentence}."),),
            )
            for volume in request.volumes
        )
    return tuple(_judge(volume, mounts, request, machine) for volume in request.volumes)


def _judge(
    volume: VolumeRequest,
    mounts: tuple[Mount, ...],
    request: VerificationRequest,
    machine: Machine,
) -> _Judged:
    where = f"The volume {volume.name} at {volume.path}"
    try:
        path = mountinfo.resolve(volume.path)
        mount = mountinfo.covering(mounts, path)
    except (MountinfoError, OSError, RuntimeError) as error:
        finding = trial.deny(f"{where} can't be judged: {error}. Name another folder.")
        return _Judged(volume=volume, path=volume.path, findings=(finding,))
    findings = _verdict(volume, mount, request, None)
    space: Statfs | None = None
    if worst(findings) is not VerdictLevel.DENY:
        # Only now: statfs on a dead network filesystem may never come back.
        try:
            space = machine.read_statfs(_existing(path, mount.mount_point))
        except OSError as error:
            findings = (trial.deny(f"{where} can't be judged: statfs: {error.strerror}."),)
        else:
            findings = _verdict(volume, mount, request, space.magic)
            findings += _strange_magic(volume, mount, space)
            if mount.is_read_only or space.is_read_only:
                findings += (trial.deny(trial.read_only_sentence(where)),)
            findings += trial.options_findings(volume.name, mount.filesystem, mount.options)
    return _Judged(volume=volume, path=path, findings=findings, mount=mount, space=space)


def _verdict(
    volume: VolumeRequest, mount: Mount, request: VerificationRequest, magic: int | None
) -> tuple[Finding, ...]:
    verdict = filesystems.verdict(
        mount.filesystem,
        magic,
        request.policy,
        volume=volume.name,
        is_ephemeral=request.is_ephemeral,
    )
    if verdict.level is VerdictLevel.ALLOW:
        return ()
    return (Finding(verdict.level, verdict.sentence),)


def _strange_magic(volume: VolumeRequest, mount: Mount, space: Statfs) -> tuple[Finding, ...]:
    """Refuse a known type with a magic number that no known type has."""
    known = {kind for kinds in filesystems.MAGIC_NUMBERS.values() for kind in kinds}
    if filesystems.types_of_magic(space.magic) or mount.filesystem.partition(".")[0] not in known:
        return ()
    return (
        trial.deny(
            f"The volume {volume.name} at {volume.path} says it is {mount.filesystem}, but statfs "
            f"answers 0x{space.magic:X}, which is not that filesystem's number. Run the broker "
            "where it sees its volumes as they are."
        ),
    )


def _existing(path: str, mount_point: str) -> str:
    """Return the path, or the nearest folder above it that exists, within the mount."""
    while path != mount_point and not os.path.lexists(path):
        path = os.path.dirname(path)  # noqa: PTH120
    return path


def _describe(judged: tuple[_Judged, ...], machine: Machine) -> tuple[VolumeReport, ...]:
    mounts = {found.volume.name: found.mount for found in judged if found.mount is not None}
    companions = sharing.companions(mounts)
    return tuple(_describe_one(found, companions, machine) for found in judged)


def _describe_one(
    found: _Judged, companions: dict[str, tuple[str, ...]], machine: Machine
) -> VolumeReport:
    name, mount, space = found.volume.name, found.mount, found.space
    if mount is None:
        result = VolumeResult(name=name, path=found.volume.path)
        return _conclude(VolumeReport(result=result), found.findings)
    device: BlockDevice = block_device.find(
        mount.major, mount.minor, source=mount.source, sysfs=machine.sysfs
    )
    result = VolumeResult(
        name=name,
        path=found.volume.path,
        filesystem=mount.filesystem,
        source=mount.source,
        options=",".join(mount.options),
        device=f"{mount.major}:{mount.minor}",
        dedicated=not companions[name],
        write_cache=device.write_cache or "",
        size_bytes=space.size_bytes if space else None,
        free_bytes=space.free_bytes if space else None,
        inodes=space.inodes if space else None,
        free_inodes=space.free_inodes if space and space.inodes else None,
    )
    report = VolumeReport(
        result=result,
        device=device,
        shares_with=companions[name],
        inodes=space.inodes if space else None,
        free_inodes=space.free_inodes if space else None,
    )
    return _conclude(report, found.findings)


# --- step 2: what works there
# -----------------------------------------------------------------------


def _try_all(
    request: VerificationRequest,
    judged: tuple[_Judged, ...],
    reports: tuple[VolumeReport, ...],
    machine: Machine,
) -> tuple[dict[str, Trial], tuple[VolumeReport, ...]]:
    trials: dict[str, Trial] = {}
    tried: list[VolumeReport] = []
    rings = SharedRing(machine.open_ring)
    machine = msgspec.structs.replace(machine, open_ring=rings.open)
    try:
        _try_each(request, zip(judged, reports, strict=True), machine, trials, tried)
    finally:
        rings.close()
    return trials, tuple(tried)


def _try_each(
    request: VerificationRequest,
    volumes: Iterable[tuple[_Judged, VolumeReport]],
    machine: Machine,
    trials: dict[str, Trial],
    tried: list[VolumeReport],
) -> None:
    """Try one volume after another; fill `trials` and `tried`."""
    timed: dict[tuple[int, int], Trial] = {}
    for found, report in volumes:
        assert found.mount is not None
        assert found.space is not None
        # One filesystem has one speed; timing it once keeps the start of a small broker short.
        sampled = timed.get(found.mount.device_number)
        made = _try_one(request, found, found.space, machine, is_timed=sampled is None)
        trials[found.volume.name] = made
        if sampled is None and made.probe is not None and made.probe.flush_us:
            sampled = timed[found.mount.device_number] = made
        tried.append(_with_trial(report, made, sampled))


def _try_one(
    request: VerificationRequest,
    found: _Judged,
    space: Statfs,
    machine: Machine,
    *,
    is_timed: bool,
) -> Trial:
    if found.volume.is_created:
        try:
            _make_folder(Path(found.path))
        except OSError as error:
            sentence = (
                f"The volume {found.volume.name} at {found.volume.path}: the folder can't be made: "
                f"{error.strerror}. Make it, or name another one."
            )
            return Trial(findings=(trial.deny(sentence),), untried=sentence)
    is_uring_asked = request.journal_type is JournalType.IO_URING and found.volume.name == JOURNAL
    return trial.run(
        found.volume,
        found.path,
        space,
        open_ring=machine.open_ring,
        open_uring=machine.open_uring if is_uring_asked else None,
        aio_depth=trial.needs_ring(
            request.journal_type, found.volume.name, JOURNAL, request.aio_demand
        ),
        flush_samples=request.flush_samples if is_timed else 0,
        has_store=not found.volume.first_bytes and _has_store(request),
    )


def _has_store(request: VerificationRequest) -> bool:
    """Whether the volumes that a store begins in hold one; what can't be read is told elsewhere."""
    for volume in request.volumes:
        try:
            if volume.first_bytes and identity.has_content(volume.path):
                return True
        except OSError:
            continue
    return False


def _make_folder(path: Path) -> None:
    """Make a folder and those above it.

    Durability: on return the folders survive a power loss; the store later flushes only what it
    makes inside of them.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o750)
        except FileExistsError:
            continue
        descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _with_trial(report: VolumeReport, made: Trial, sampled: Trial | None) -> VolumeReport:
    samples = sampled.probe if sampled is not None and made.probe is not None else None
    p50_us = samples.flush_us_p50 if samples else None
    direct, aio = made.direct, made.aio
    result = msgspec.structs.replace(
        report.result,
        direct_io=direct.works,
        aio=aio.works,
        flush_us_p50=p50_us,
        flush_us_p99=samples.flush_us_p99 if samples else None,
    )
    uid, gid, mode = made.owner or (None, None, None)
    report = msgspec.structs.replace(
        report,
        result=result,
        direct_reason=direct.reason,
        aio_reason=aio.reason,
        flush_method=samples.flush_method if samples else "",
        flush_count=len(samples.flush_us) if samples else 0,
        owner_uid=uid,
        owner_gid=gid,
        mode=f"{mode:#o}" if mode is not None else "",
    )
    suspicious = trial.flush_findings(
        result.name, result.filesystem, p50_us, report.device.write_cache or ""
    )
    slow = trial.scheduler_findings(result.name, report.device)
    return _conclude(report, made.findings + suspicious + slow)


# --- step 4: whose it is
# ----------------------------------------------------------------------------


def _identify(
    request: VerificationRequest,
    owner: identity.Owner,
    reports: tuple[VolumeReport, ...],
    machine: Machine,
) -> tuple[VolumeReport, ...]:
    paths = {volume.name: mountinfo.resolve(volume.path) for volume in request.volumes}
    findings: dict[str, tuple[Finding, ...]] = {}
    looked: dict[str, identity.Finding] = {}
    for name, path in paths.items():
        try:
            looked[name] = identity.look(path)
        except OSError as error:
            findings[name] = (trial.deny(_unreadable(name, path, error)),)
    decisions = identity.decide(
        looked, owner, created=machine.now(), adopt=request.adopts, adopted=request.adopted
    )
    for name, decision in decisions.items():
        if decision.action is Action.REFUSE:
            findings[name] = (trial.deny(decision.sentence),)
        elif decision.sentence:
            findings[name] = (trial.warn(decision.sentence),)
    is_refused = any(worst(found) is VerdictLevel.DENY for found in findings.values())
    for name, decision in decisions.items():
        if is_refused or decision.action is not Action.WRITE or decision.stamp is None:
            continue
        try:
            identity.write(paths[name], decision.stamp)
        except OSError as error:
            findings[name] = _unwritten(name, paths[name], error, looked[name])
    return tuple(
        _conclude(
            _with_decision(report, decisions.get(report.result.name), is_refused=is_refused),
            findings.get(report.result.name, ()),
        )
        for report in reports
    )


def _with_decision(
    report: VolumeReport, decision: identity.Decision | None, *, is_refused: bool
) -> VolumeReport:
    """Note whether a volume was adopted, or could be."""
    if decision is None or not (decision.is_adopted or decision.may_adopt):
        return report
    result = msgspec.structs.replace(
        report.result,
        adopted=decision.is_adopted and not is_refused,
        may_adopt=decision.may_adopt,
    )
    return msgspec.structs.replace(report, result=result)


def _unreadable(name: str, path: str, error: OSError) -> str:
    return (
        f"Volume {name} at {path} can't be identified: {identity.STAMP_NAME}: {error.strerror}. "
        "Restore that file from a backup, or attach a blank volume."
    )


def _unwritten(
    name: str, path: str, error: OSError, looked: identity.Finding
) -> tuple[Finding, ...]:
    sentence = (
        f"Volume {name} at {path}: {identity.STAMP_NAME} can't be written: {error.strerror}. "
        "Make room or correct its permissions."
    )
    # A full disk must not keep a broker down that could be emptied; its old stamp is still there.
    is_known = looked.stamp is not None
    return (trial.warn(sentence) if is_known else trial.deny(sentence),)
