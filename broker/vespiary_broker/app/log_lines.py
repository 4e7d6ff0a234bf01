"""Log lines: one line for an event, `key=value`, without payload.

Owns the form. Messages of the code are an event in words and then `key=value` pairs; this adds
time, level and logger. Messages hold names that clients chose, wherever the lines go: their control
characters are escaped, and they are quoted where they would read as several words or pairs.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Final

from vespiary_spec.printable import printable_line

_CONVERSION: Final = re.compile(r"(=?)%(?:%|[-#0 +]*\d*(?:\.\d+)?([A-Za-z]))")
_SEVERAL_WORDS: Final = re.compile(r"[\s'\"]")
_FURTHER_PAIR: Final = re.compile(r"\s[^\s=]+=")


class LineFormatter(logging.Formatter):
    """Prints `time=… level=… logger=… event="…"`, a traceback as further indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = printable_line(" ".join(_message(record).split()))
        logger = record.name.removeprefix("vespiary_broker.")
        line = (
            f"time={moment}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"logger={logger} event={event}"
        )
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {printable_line(text)}" for text in trace.splitlines())
        return line


def _message(record: logging.LogRecord) -> str:
    """Return the message of a record, in which no argument reads as more than it is."""
    text, arguments = str(record.msg), record.args
    conversions = [found for found in _CONVERSION.finditer(text) if found[2]]
    if not isinstance(arguments, tuple) or len(arguments) != len(conversions):
        return record.getMessage()
    return text % tuple(map(_quoted, conversions, arguments))


def _quoted(conversion: re.Match[str], argument: object) -> object:
    """Return an argument; text that would read as several words or pairs is quoted as by `%r`."""
    is_value, kind = conversion.groups()
    if kind != "s":
        return argument
    forged = _SEVERAL_WORDS if is_value else _FURTHER_PAIR
    shown = str(argument)
    return repr(shown) if forged.search(shown) else shown


def set_up(level: str = "INFO") -> None:
    """Send all log lines to standard error.

    Args:
        level: Lowest level that is shown: DEBUG, INFO, WARNING, ERROR.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
