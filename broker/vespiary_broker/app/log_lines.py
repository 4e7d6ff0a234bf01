"""Log lines: one line for an event, `key=value`, without payload.

Owns the form. Messages of the code are an event in words and then `key=value` pairs; this adds
time, level and logger. Messages hold names that clients chose, so their control characters are
escaped, wherever the lines go.
"""

from __future__ import annotations

import logging
import sys
import time

from vespiary_spec.printable import printable_line


class LineFormatter(logging.Formatter):
    """Prints `time=… level=… logger=… event="…"`, a traceback as further indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = printable_line(" ".join(record.getMessage().split()))
        logger = record.name.removeprefix("vespiary_broker.")
        line = (
            f"time={moment}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"logger={logger} event={event}"
        )
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {printable_line(text)}" for text in trace.splitlines())
        return line


def set_up(level: str = "INFO") -> None:
    """Send all log lines to standard error.

    Args:
        level: Lowest level that is shown: DEBUG, INFO, WARNING, ERROR.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
