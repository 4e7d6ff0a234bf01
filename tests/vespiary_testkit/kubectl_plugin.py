"""`kubectl vespiary` as a person runs it: found by the real kubectl. Called by tests/e2e."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def plugin(namespace: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl vespiary` as a person does."""
    kubectl = shutil.which("kubectl")
    assert kubectl is not None
    scripts = str(Path(sys.executable).parent)
    assert (Path(scripts) / "kubectl-vespiary").is_file(), "the package is not installed"
    return subprocess.run(
        [kubectl, "vespiary", "-n", namespace, *arguments],
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
