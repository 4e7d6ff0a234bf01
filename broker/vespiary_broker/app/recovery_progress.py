"""How far the reading of a journal is, for the log and for `/readyz`.

Owns the sentence and when it is logged. Told in the journal's worker thread, read on the event
loop: each report replaces the one before it. Called by `broker`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from vespiary_broker.store.recovery import Progress
from vespiary_spec.units import format_size_rounded

LOG_PERIOD_S: Final = 2.0

log = logging.getLogger(__name__)


class RecoveryProgress:
    """Takes the reports of one recovery.

    Args:
        tell: Called with a sentence after each file.
        clock_s: Seconds.
    """

    def __init__(
        self, tell: Callable[[str], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock_s = clock_s
        self._logged_s = clock_s()

    def report(self, progress: Progress) -> None:
        """Take a report; log it if the last line in the log is old."""
        self._tell(
            f"the broker is reading its journal: {progress.files_done} of {progress.files_total} "
            f"files, {format_size_rounded(progress.bytes_done)}"
        )
        now_s = self._clock_s()
        if now_s - self._logged_s < LOG_PERIOD_S:
            return
        self._logged_s = now_s
        log.info(
            "recovering files=%d of=%d bytes=%d",
            progress.files_done,
            progress.files_total,
            progress.bytes_done,
        )
