"""Images of other versions, made from the tree's own by a few lines of shell.

Owns how they are built and named. Called by tests/e2e.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, run

PACKAGES = "/opt/vespiary/lib/python3.11/site-packages"
"""Where the images have their Python packages."""


def variant(cluster: KubernetesCluster, image: str, name: str, *changes: str) -> str:
    """Return an image in the cluster that differs from another one; it is made if it is not there.

    Args:
        cluster: The cluster; the test is skipped where its script did not make it.
        image: The image that it is made from, with its tag.
        name: What comes before that tag in its own: a version, so that `spec.version` can name it.
        changes: Commands that make the difference, run by root. One that fails fails the test.
    """
    if cluster.script is None:
        pytest.skip("images of other versions are made with the script's own builder")
    repository, _, tag = image.rpartition(":")
    made = f"{repository}:{name}-{tag}"
    script = str(cluster.script)
    there = run(script, "enter", "ctr", "-n", "k8s.io", "images", "ls", "-q").stdout.split()
    if f"docker.io/{made}" in there:
        return made
    text = f"FROM docker.io/{image}\nUSER 0\n"
    text += "".join(f"RUN {change}\n" for change in changes)
    text += "USER 10001:10001\n"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(text)
        run(script, "image", folder, made, timeout_s=900)
    return made
