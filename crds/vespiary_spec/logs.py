"""The setting of what a broker logs.

Owns: the levels, and the field, which `BrokerSettings` has through `management.CounterSettings`.
Never: logs anything.
Called by: `management`.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec.model import Change, setting


class BrokerLogLevel(enum.StrEnum):
    """Least level of the lines that a broker logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about log lines."""

    log_level: Annotated[
        BrokerLogLevel | None,
        setting(
            "Least level of log lines. The option `--log-level` of `vespiary run` wins.",
            change=Change.RELOAD,
            default_text="info; on a terminal warning",
        ),
    ] = None
