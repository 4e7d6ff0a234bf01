"""What aiohttp logs of requests: its own failures whole, those of clients as one line.

Owns the logger that aiohttp gets. Must never swallow a failure of ours. Called by `endpoints`.
"""

from __future__ import annotations

import logging
import time

from aiohttp.http_exceptions import HttpProcessingError

from vespiary_broker.server.line_limit import LineLimit

log = logging.getLogger(__name__)


def request_log() -> logging.Logger:
    """Return the logger for requests that never came to a handler."""
    log = logging.getLogger(__name__)
    for each in log.filters[:]:
        log.removeFilter(each)  # that of an HTTP port which was there before
    log.addFilter(_Shortening())
    return log


class _Shortening(logging.Filter):
    """Makes one short line of a request that is not HTTP, and at most a few a minute.

    Without it any client could fill the disk. Lines about our own failures pass unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit(
            lambda *told: log.info("more requests were none listener=%s count=%d", *told)
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged, shortened if need be."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            reason = " ".join(error.message.split())[:100]
            record.msg, record.args = "%s: it is no request (%s)", (record.getMessage(), reason)
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
            kind = record.getMessage()
            return self._limit.admits(kind, listener="http", now_s=time.monotonic())
        return True
