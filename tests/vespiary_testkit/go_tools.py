"""Checkers that are written in Go: `make tools` builds them once from their published modules.

Owns: which versions, and where what was built is kept (`VESPIARY_TOOLS`, or a folder of the
user's cache). Tests use what is there and build nothing; Go checks what it downloads against the
public checksum database.
Never: installs anything outside that folder. Called by: `make tools`, tests/chart.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

BUILD_TIMEOUT_S = 1500
"""promtool is most of Prometheus: minutes on two cores, once."""


class GoTool(NamedTuple):
    """A program.

    Attributes:
        package: What is built.
        module: The module that it is in.
        version: Version of that module.
        tags: Build tags.
    """

    package: str
    module: str
    version: str
    tags: str = "netgo"


TOOLS = {
    "kubeconform": GoTool(
        "github.com/yannh/kubeconform/cmd/kubeconform", "github.com/yannh/kubeconform", "v0.7.0"
    ),
    "kube-score": GoTool(
        "github.com/zegl/kube-score/cmd/kube-score", "github.com/zegl/kube-score", "v1.20.0"
    ),
    # Without service discovery, which rules have no use for and which is most of the build.
    "promtool": GoTool(
        "github.com/prometheus/prometheus/cmd/promtool",
        "github.com/prometheus/prometheus",
        "v0.316.0",
        "netgo,remove_all_sd",
    ),
}


class NoTool(Exception):  # noqa: N818 - a reason to skip, no failure
    """Why a program cannot be had."""


def folder() -> Path:
    """Return where built programs are kept."""
    named = os.environ.get("VESPIARY_TOOLS", "")
    return Path(named) if named else Path.home() / ".cache" / "vespiary-tools" / "bin"


def _build(name: str, target: Path) -> None:
    wanted = TOOLS[name]
    if shutil.which("go") is None:
        raise NoTool(f"{name} could not be built: there is no Go")
    with tempfile.TemporaryDirectory(prefix="vespiary-tools-") as scratch:
        # A module of its own: `go install` takes none whose go.mod has exclusions.
        commands = (
            ["go", "mod", "init", "tools.invalid/one"],
            ["go", "mod", "edit", "-require", f"{wanted.module}@{wanted.version}"],
            [
                *("go", "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-tags", wanted.tags),
                *("-o", str(target.with_suffix(".new")), wanted.package),
            ],
        )
        for command in commands:
            done = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_TIMEOUT_S,
            )
            if done.returncode:
                said = " ".join(done.stderr.split())[-300:]
                raise NoTool(f"{name} could not be built: {said}")
    target.with_suffix(".new").rename(target)


def tool(name: str) -> str:
    """Return the path of a program.

    Args:
        name: One of `TOOLS`.

    Raises:
        NoTool: It is not there.
    """
    target = folder() / name
    found = str(target) if target.is_file() else shutil.which(name)
    if found is None:
        raise NoTool(f"{name} is not there; `make tools` builds it")
    return found


def main() -> int:
    """Build what is not there yet; return 1 if something could not be built."""
    folder().mkdir(parents=True, exist_ok=True)
    missing = 0
    for name in TOOLS:
        target = folder() / name
        with (folder() / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several at a time, one builds
            try:
                if not target.is_file():
                    print(f"building {name} {TOOLS[name].version}", flush=True)
                    _build(name, target)
            except NoTool as reason:
                missing += 1
                print(reason, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
