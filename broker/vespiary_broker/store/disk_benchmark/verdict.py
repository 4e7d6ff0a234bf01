"""What the figures of a disk mean, in words, and the settings that follow; pure.

Owns: the rules, each in a function of its own with its bound beside it. Must never measure or read
the machine. Called by `benchmark`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from vespiary_broker.store.disk_benchmark.measuring import READ, SYNCED_WRITE, WRITE
from vespiary_broker.store.disk_benchmark.results import (
    BLOCK_SIZE,
    FIRST_WRITE,
    GROWING,
    DiskFacts,
    Judgement,
    Phase,
)
from vespiary_broker.store.volumes.trial import SUSPICIOUS_FLUSH_US, options_findings
from vespiary_spec import filesystems
from vespiary_spec.units import format_size, format_size_rounded

_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_ROTATION_FLOOR_US: Final = 1500
"""A disk of 15 000 turns a minute takes 4 ms for one; a flush needs half of that in the mean."""
_FLUSH_SHARE_MIN: Final = 1.05
"""A flush of a volatile cache costs something: below this ratio to a plain write it was skipped."""
_BETTER: Final = 1.15
"""Ratio from which one way is called better: two runs of the same differ by less than this."""
_OPERATIONS_MIN: Final = 200
"""Fewer operations than this are no ground to leave a default."""
_SLOW_FLUSH_US: Final = 5000


def judge(
    facts: DiskFacts, phases: Sequence[Phase], missing_engines: Mapping[str, str]
) -> Judgement:
    """Say what follows from the figures.

    Args:
        facts: The disk.
        phases: What was measured; must hold the groups FIRST_WRITE and REWRITE.
        missing_engines: Engines that could not be had, and why.
    """
    bad = [*_filesystem(facts), *_cache(facts, phases)]
    engine_sentences, settings = _engine(phases, missing_engines)
    preallocation_sentences, more = _preallocation(phases)
    settings |= more
    sentences = [
        *(sentence for _, sentence in bad),
        *_latency(phases),
        *engine_sentences,
        *preallocation_sentences,
        *_grouping(phases),
        *_alignment(facts),
    ]
    return Judgement(
        is_good=not any(is_bad for is_bad, _ in bad),
        sentences=tuple(sentences),
        settings=settings,
    )


def _filesystem(facts: DiskFacts) -> list[tuple[bool, str]]:
    """Judge filesystem and mount options, as `vespiary check` does."""
    verdict = filesystems.verdict(facts.filesystem, volume=facts.folder)
    found = [(verdict.is_denied, verdict.sentence)]
    found += [
        (True, finding.sentence)
        for finding in options_findings(facts.folder, facts.filesystem, facts.mount_options)
    ]
    return found


def _cache(facts: DiskFacts, phases: Sequence[Phase]) -> list[tuple[bool, str]]:
    """Judge whether a flush reaches the medium, by what the disk says and by how long it takes."""
    if facts.filesystem in _MEMORY:
        return [(True, "This is memory: what is flushed here is gone with the power.")]
    synced = _phase(phases, SYNCED_WRITE)
    plain = _phase(phases, WRITE)
    p50 = synced.p50_us
    name = ", ".join(facts.disks) or facts.device or "the disk"
    found: list[tuple[bool, str]] = []
    cache = facts.write_cache
    if cache == "write back":
        how = "with" if facts.has_fua else "without"
        found.append(
            (
                False,
                f"{name} says that it has a volatile write cache (write back, {how} FUA): only a "
                "flush makes a write durable, and the broker flushes before every confirm. Leave "
                "journal-datasync on.",
            )
        )
    elif cache == "write through":
        found.append(
            (False, f"{name} says that it has no volatile write cache: a write is durable at once.")
        )
    else:
        found.append((False, "Nothing tells whether this disk has a volatile write cache."))
    # A hypervisor calls its disks rotational without a thought, so there it says nothing.
    is_rotational = facts.is_rotational and not facts.hypervisor
    if is_rotational and p50 < _ROTATION_FLOOR_US and cache != "write through":
        found.append((True, _implausible(p50, "a spinning disk needs several milliseconds")))
    elif p50 < SUSPICIOUS_FLUSH_US and cache != "write through":
        found.append((True, _implausible(p50, "no disk behind a volatile cache is that fast")))
    elif cache == "write back" and p50 < plain.p50_us * _FLUSH_SHARE_MIN:
        found.append(
            (
                True,
                f"A flushed write takes as long as a plain one ({p50:.0f} and "
                f"{plain.p50_us:.0f} µs), though the cache is volatile: flushes seem to be "
                "skipped. Make sure that the disk has capacitors or a battery, or that the "
                "hypervisor honours flushes.",
            )
        )
    if facts.hypervisor:
        who = f" ({facts.hypervisor})" if facts.hypervisor != "yes" else ""
        found.append(
            (
                False,
                f"This is a virtual machine{who}: the host decides what a flush is worth, and "
                "this benchmark can't look behind it. QEMU's cache=unsafe throws flushes away; "
                "network volumes of the large clouds keep what they confirmed.",
            )
        )
    return found


def _implausible(p50_us: float, why: str) -> str:
    return (
        f"Half of the flushed writes took under {p50_us:.0f} µs: {why}. Something confirms "
        "flushes that it does not make: a controller's cache, a drive, or the hypervisor. Make "
        "sure that it has a battery or capacitors, or switch that cache off (hdparm -W0, sdparm "
        "--clear=WCE); docs/howto/disks.md says how."
    )


def _latency(phases: Sequence[Phase]) -> list[str]:
    synced = _phase(phases, SYNCED_WRITE)
    read = _phase(phases, READ)
    block = format_size(synced.block_bytes)
    found = [
        f"A flushed write of {block} takes {synced.p50_us:.0f} µs in the middle, "
        f"{synced.p99_us:.0f} µs for one in a hundred, {synced.max_us / 1000:.1f} ms at the most: "
        f"one client that sends a message at a time gets {synced.operations_per_s:.0f} confirms a "
        f"second. Reads: {read.operations_per_s:.0f} a second."
    ]
    if synced.p50_us >= _SLOW_FLUSH_US:
        found.append(
            "Flushes are slow here. Many messages share one, so throughput needs many in flight: "
            "let producers send without waiting for each receipt, or commit several at a time."
        )
    elif synced.p99_us > 20 * synced.p50_us:
        found.append(
            "Some flushes take far longer than the usual one: others use this disk or these "
            "processors. Give the journal a disk of its own."
        )
    return found


def _engine(
    phases: Sequence[Phase], missing: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Compare the engines; ASYNCIO, the default, stays unless another is clearly better."""
    found = [f"{name} can't be had here: {reason}" for name, reason in missing.items()]
    rates = {
        phase.engine: phase
        for phase in phases
        if (phase.group, phase.kind, phase.preallocation) == (FIRST_WRITE, SYNCED_WRITE, "zeros")
    }
    if len(rates) < 2:
        (name,) = rates
        return found, {"journal-type": name}
    usual = "ASYNCIO" if "ASYNCIO" in rates else "NIO"
    best = min(rates.values(), key=lambda phase: phase.p50_us)
    is_better = rates[usual].p50_us > best.p50_us * _BETTER
    is_sure = min(best.operations, rates[usual].operations) >= _OPERATIONS_MIN
    chosen = best.engine if is_better and is_sure else usual
    reason = "is within the noise of the fastest"
    if chosen == best.engine:
        reason = "is the fastest"
        if chosen != usual:
            reason += (
                f"; measure again with quiet processors before you leave {usual}, whose flushes "
                "wait for a processor that others keep busy"
            )
    elif is_better:
        reason = "stays: these are too few operations to tell (raise --seconds)"
    figures = ", ".join(f"{name} {phase.p50_us:.0f} µs" for name, phase in rates.items())
    return [*found, f"Engines by the median of a flushed write: {figures}. {chosen} {reason}."], {
        "journal-type": chosen
    }


def _preallocation(phases: Sequence[Phase]) -> tuple[list[str], dict[str, str]]:
    """Compare the files; zeros, the default, stays unless another is clearly better.

    By the median, since a written file is a written file however it was made: what differs between
    the means are single flushes that took long.
    """
    flushed = [p for p in phases if (p.group, p.kind) == (FIRST_WRITE, SYNCED_WRITE)]
    # By the engine that busy processors disturb least: what is compared are files.
    zeros = (phase for phase in flushed if phase.preallocation == "zeros")
    engine = min(zeros, key=lambda phase: phase.p50_us).engine
    by_name = {phase.preallocation: phase for phase in flushed if phase.engine == engine}
    usual = "zeros"
    best = min((name for name in by_name if name != GROWING), key=lambda name: by_name[name].p50_us)
    is_better = by_name[usual].p50_us > by_name[best].p50_us * _BETTER
    is_sure = min(by_name[name].operations for name in (usual, best)) >= _OPERATIONS_MIN
    chosen = best if is_better and is_sure else usual
    written, growing = by_name[chosen], by_name[GROWING]
    ratio = growing.p50_us / written.p50_us
    settings = {"journal-preallocation-strategy": chosen}
    figures = (
        f"{written.p50_us:.0f} µs in the middle ({written.operations_per_s:.0f} a second), one to "
        f"a growing file {growing.p50_us:.0f} µs ({growing.operations_per_s:.0f} a second) with "
        f"{engine}"
    )
    if ratio >= _BETTER:
        sentence = (
            f"A flushed write to a preallocated file ({chosen}) takes {figures}: {ratio:.1f} times "
            "as long. Keep journal-preallocation-scope as it is."
        )
    else:
        sentence = (
            f"Preallocation changes little here: a flushed write takes {figures}, as on "
            "filesystems that never write in place. It still takes the space before it is needed."
        )
    return [sentence], settings


def _grouping(phases: Sequence[Phase]) -> list[str]:
    """Say what larger writes gain: that is what messages in flight turn into."""
    sizes = [phase for phase in phases if phase.group == BLOCK_SIZE]
    synced = _phase(phases, SYNCED_WRITE)
    if not sizes:
        return []
    best = max(sizes, key=lambda phase: phase.bytes_per_s)
    timer_ns = 1e9 / synced.operations_per_s
    return [
        f"Larger writes: {format_size(best.block_bytes)} at a time give "
        f"{format_size_rounded(int(best.bytes_per_s))} a second, flushed. The broker's writes grow "
        "with the load by themselves, up to 1 MiB: journal-buffer-timeout (0) and journal-max-io "
        "need no tuning. A broker that gathers by a timer would want journal-buffer-timeout="
        f"{timer_ns:.0f} here."
    ]


def _alignment(facts: DiskFacts) -> list[str]:
    if not facts.is_direct:
        return ["There is no direct I/O here: the engine will be NIO, through the page cache."]
    if facts.alignment_bytes and 4096 % facts.alignment_bytes:
        return [
            f"The disk writes in units of {facts.alignment_bytes} bytes, which the journal does "
            "not support: take a volume with sectors of at most 4096 bytes."
        ]
    return []


def _phase(phases: Sequence[Phase], kind: str) -> Phase:
    """Return the first phase of that kind on a file of zeros: the broker's usual engine.

    Of plain writes that is the one to blocks written before, which took turns with the flushed
    ones.
    """
    return next(phase for phase in phases if phase.kind == kind and phase.preallocation == "zeros")
