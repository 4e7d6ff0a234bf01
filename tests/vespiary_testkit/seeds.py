"""Seeds for all random choices of the tests: one number repeats a run.

`VESPIARY_SEED` sets the number (`make verify` sets it from the clock). Without it the number comes
from the commit, so that each commit tests new cases and every machine tests the same ones. Each use
derives its own seed from the number and a name, so that the choices of a test do not depend on
other tests.
tests/conftest.py prints the number, and the line that repeats each failed test.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "VESPIARY_SEED"
SEED_MAX: Final = 2**63 - 1
_ROOT: Final = Path(__file__).resolve().parents[2]
_DIGITS_OF_COMMIT: Final = 15
_NOT_PRINTED: Final = frozenset(
    {
        VARIABLE,
        "VESPIARY_E2E_RECORD",
        "VESPIARY_PASSWORD",
        "VESPIARY_RUN_REPORT",
        "VESPIARY_TIER",
    }
)
"""Variables that are printed separately, belong to one run, or are secret."""


def run_seed() -> int:
    """Return the seed of this run.

    Raises:
        ValueError: `VESPIARY_SEED` is not a whole number from 0 to `SEED_MAX`.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return _commit_seed()
    if not (text.isascii() and text.isdecimal()) or int(text) > SEED_MAX:
        raise ValueError(f"{VARIABLE}={text} is not a whole number from 0 to {SEED_MAX}")
    return int(text)


@functools.cache
def _commit_seed() -> int:
    """Return the seed of the commit that is checked out; 0 where there is no git."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout[:_DIGITS_OF_COMMIT], 16) if done.returncode == 0 else 0


def seed_for(name: str, bits: int = 32) -> int:
    """Return the seed of one use.

    Args:
        name: What the seed is for; two uses with the same name choose the same.
        bits: Size of the seed, at most 512.
    """
    digest = hashlib.blake2b(f"{run_seed()} {name}".encode()).digest()
    return int.from_bytes(digest, "big") >> (len(digest) * 8 - bits)


def replay_line(node_id: str, environment: Mapping[str, str], *options: str) -> str:
    """Return the command that runs one test again with the same choices.

    Args:
        node_id: The test, as pytest names it.
        environment: Its `VESPIARY_*` variables become part of the command, because they select the
            implementations and the amount of work.
        options: More options of pytest.
    """
    names = sorted(n for n in environment if n.startswith("VESPIARY_") and n not in _NOT_PRINTED)
    variables = [f"{name}={shlex.quote(environment[name])}" for name in names]
    if "VESPIARY_LATE" in environment:
        variables.append("PYTHONPATH=tests/late")
    command = [f"{VARIABLE}={run_seed()}", *variables, ".venv/bin/python -m pytest", *options]
    return " ".join([*command, shlex.quote(node_id)])
