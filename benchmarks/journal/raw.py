"""The raw disk, measured on the journal's own files by a C loop that only writes.

Owns: building and running `rawwrite`. Must never: name a file that is still a journal's. Called by
`measurement`, before and after what it is compared with.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

SOURCE = Path(__file__).with_name("rawwrite.c")
_WARNINGS = ("all", "extra", "conversion", "shadow", "strict-prototypes", "vla", "error")
_C_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", *(f"-W{name}" for name in _WARNINGS))


class RawError(Exception):
    """The C loop could not be built, or the disk refused."""


class RawWrites(msgspec.Struct, frozen=True):
    """Durable writes, one at a time."""

    count: int
    bytes: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth."""
        return self.bytes / self.seconds


def build(folder: Path) -> Path:
    """Compile the loop into a folder and return the program.

    Raises:
        RawError: There is no compiler, or it refuses.
    """
    program = folder / "rawwrite"
    try:
        command = ["cc", *_C_FLAGS, str(SOURCE), "-o", str(program)]
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise RawError("a C compiler is needed: `cc` was not found") from error
    except subprocess.CalledProcessError as error:
        raise RawError(f"cc refused {SOURCE.name}:\n{error.stderr}") from error
    return program


def write(program: Path, block_bytes: int, seconds: float, files: Sequence[Path]) -> RawWrites:
    """Write durably over files, in order and again from the first.

    Args:
        program: What `build` returned.
        block_bytes: Size of one write, a multiple of 4096.
        seconds: How long.
        files: Filled files; what is in them is lost.

    Raises:
        RawError: A call failed.

    Durability: RWF_DSYNC on O_DIRECT: each write is on the device when it is counted.
    """
    command = [str(program), str(block_bytes), str(seconds), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RawError(done.stderr.strip())
    return msgspec.json.decode(done.stdout, type=RawWrites)
