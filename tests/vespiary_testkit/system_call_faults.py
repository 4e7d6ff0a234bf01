"""Real faults in system calls of a real process, injected by strace.

`tracer` gives the command to put in front of a broker. strace runs detached (`-D`), so the process
that a test starts and signals is the broker itself. strace counts calls for each thread apart.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

_TRIAL_S = 60.0


@functools.cache
def obstacle() -> str:
    """Why faults cannot be injected here; empty if they can."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    trial = [strace, "-D", "-f", "-qq", "-o", "/dev/null", "-e", "inject=chdir:error=EIO", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=_TRIAL_S, check=False)
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


def tracer(*injections: str, log: Path | None = None) -> list[str]:
    """Return the command that injects faults into what is started behind it.

    Args:
        injections: As after `-e inject=`, such as `io_submit:error=EIO:when=5`.
        log: File for the traced calls; None keeps none.
    """
    if reason := obstacle():
        pytest.skip(reason)
    calls = ",".join(call.partition(":")[0] for call in injections)
    command = ["strace", "-D", "-f", "-qq", "-o", str(log or "/dev/null"), "-e", f"trace={calls}"]
    # Only the traced calls stop the process: the rest runs at its usual speed.
    command.append("--seccomp-bpf")
    for injection in injections:
        command += ["-e", f"inject={injection}"]
    return command


def watcher(calls: str, log: Path) -> list[str]:
    """Return the command that writes down system calls of what is started behind it.

    Args:
        calls: Their names, with commas.
        log: File for them.
    """
    if reason := obstacle():
        pytest.skip(reason)
    return ["strace", "-D", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}", "--seccomp-bpf"]
