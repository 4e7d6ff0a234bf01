"""What a broker's start does in a thread while the rest of the program is imported.

Owns: the question that a start asks about its volumes, and the thread that answers it. Opening and
closing rings, flushing new folders and so on takes about as long as importing the engine and the
server, and leaves the processor alone. Must never import those itself. Called by `broker`, and by
the command line before it imports `broker`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vespiary_broker.store.volumes import request, verification
from vespiary_broker.store.volumes.report import Report
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.settings import Configuration


def begin_verification(
    configuration: Configuration,
    base: Path | None,
    policy: FilesystemPolicy | None,
    *,
    is_ephemeral: bool,
    waits_for_aio: bool = False,
) -> Future[Report]:
    """Begin to verify the volumes of a broker that is to start.

    Args:
        configuration: Its configuration.
        base: Replaces `data-directory`; None uses the setting.
        policy: Which filesystems are taken; None takes the defaults.
        is_ephemeral: Losing the data was asked for, so volumes in memory are taken.
        waits_for_aio: A lack of AIO requests is waited for; it is no reason for another engine.

    Returns:
        What was found, refusals included. The thread ends with it.
    """
    asked = request.of_settings(
        configuration,
        base=base,
        policy=policy,
        is_ephemeral=is_ephemeral,
        flush_samples=0,
        waits_for_aio=waits_for_aio,
    )
    threads = ThreadPoolExecutor(1, thread_name_prefix="volumes")
    try:
        return threads.submit(verification.verify, asked)
    finally:
        threads.shutdown(wait=False)
