"""What aiohttp logs of requests: its own failures whole, those of clients as one line.

Owns the logger that aiohttp gets. Must never swallow a failure of ours. Called by `endpoints`.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


def request_log() -> logging.Logger:
    """Return the logger for requests that never came to a handler."""
    log = logging.getLogger(__name__)
    log.addFilter(_shorten)
    return log


def _shorten(record: logging.LogRecord) -> bool:
    """Leave out the traceback of a request that is no HTTP: whoever likes could fill the disk."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        reason = " ".join(error.message.split())[:100]
        record.msg, record.args = "%s: it is no request (%s)", (record.getMessage(), reason)
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True
