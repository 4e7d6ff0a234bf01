"""Whether the node's AIO limit has room for this broker.

`fs.aio-max-nr` is one number for the whole node, without a namespace; `io_setup(n)` takes exactly
n of it, or fails with EAGAIN. Both files are readable by everyone in every container. Reads,
never writes: raising the limit is `BrokerNodeTuning`'s or the administrator's. Called by
`verification`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

FOLDER = Path("/proc/sys/fs")
# The kernel's own default is one such step; round numbers are easier to recognise on a node.
_STEP = 65536


class AioLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The node's AIO numbers against what this broker asks for.

    Attributes:
        demand: Operations in flight that the broker will reserve.
        in_use: `fs.aio-nr`; None when it can't be read (no AIO in this kernel, or gVisor).
        maximum: `fs.aio-max-nr`; None likewise.
    """

    demand: int
    in_use: int | None
    maximum: int | None

    @property
    def is_known(self) -> bool:
        """Whether both numbers could be read."""
        return self.in_use is not None and self.maximum is not None

    @property
    def is_enough(self) -> bool:
        """Whether the demand fits; where the numbers are unknown, the trial has to tell."""
        if self.in_use is None or self.maximum is None:
            return True
        return self.in_use + self.demand <= self.maximum

    @property
    def needed_maximum(self) -> int:
        """The smallest round `fs.aio-max-nr` that would do; never below the present one."""
        total = (self.in_use or 0) + self.demand
        return max(self.maximum or 0, -(-total // _STEP) * _STEP)

    @property
    def sentence(self) -> str:
        """State the numbers and, when they are not enough, what to do; one sentence."""
        if self.in_use is None or self.maximum is None:
            return (
                f"whether {self.demand} AIO operations fit is unknown, "
                f"for fs.aio-nr and fs.aio-max-nr can't be read in {FOLDER}."
            )
        numbers = (
            f"{self.demand} AIO operations are needed, "
            f"{max(0, self.maximum - self.in_use)} of fs.aio-max-nr={self.maximum} are free "
            f"(fs.aio-nr={self.in_use})"
        )
        if self.is_enough:
            return f"{numbers}."
        return (
            f"{numbers}: let a BrokerNodeTuning with mode Raise set it, run "
            f"`sysctl -w fs.aio-max-nr={self.needed_maximum}` on the node, "
            "or lower journal-max-io."
        )


def read(demand: int, *, folder: Path = FOLDER) -> AioLimits:
    """Read the node's numbers.

    Args:
        demand: Operations in flight that the broker will reserve, 0 or more.
        folder: Where `aio-nr` and `aio-max-nr` are.
    """
    return AioLimits(
        demand=demand,
        in_use=_number(folder / "aio-nr"),
        maximum=_number(folder / "aio-max-nr"),
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
