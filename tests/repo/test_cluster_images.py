"""Which images an e2e session removes from the node: those of earlier ones, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit import kubernetes_cluster
from vespiary_testkit.cluster_images import remove_stale_images, stale_images
from vespiary_testkit.kubernetes_cluster import (
    PIPELINE_SOURCES,
    KubernetesCluster,
    build_images,
    tree_hash,
)

pytestmark = pytest.mark.verify

OLD, OWN, PIPELINE = "0123456789ab", "ba9876543210", "00112233aabb"
TITLES = "REF TYPE DIGEST SIZE PLATFORMS LABELS"
ID = f"sha256:{'1' * 64}"
REST = "application/vnd.docker.distribution.manifest.v2+json {} 90.0 MiB linux/amd64 managed"


def listing(*images: tuple[str, str]) -> str:
    """Return what `ctr` prints of images: names and digests."""
    return "\n".join([TITLES, *(f"{name} {REST.format(digest)}" for name, digest in images)])


def stale(*images: tuple[str, str]) -> list[str]:
    return stale_images(listing(*images), (OWN, PIPELINE))


@pytest.mark.parametrize(
    "name",
    [
        f"docker.io/vespiary/operator:e2e-{OLD}",
        f"docker.io/vespiary/broker:e2e-{OLD}",
        f"docker.io/vespiary/pipeline:e2e-{OLD}",
        f"docker.io/vespiary/broker:0.2.0-e2e-{OLD}",
        f"docker.io/vespiary/broker:9.9-other-e2e-{OLD}",
    ],
)
def test_an_image_of_an_earlier_session_goes(name: str) -> None:
    assert stale((name, "sha256:a")) == [name]


@pytest.mark.parametrize(
    "name",
    [
        f"docker.io/vespiary/operator:e2e-{OWN}",
        f"docker.io/vespiary/broker:0.2.0-e2e-{OWN}",
        f"docker.io/vespiary/pipeline:e2e-{PIPELINE}",
        "docker.io/vespiary/broker:dev",
        "docker.io/vespiary/broker:1.0.0",
        f"docker.io/vespiary/broker:e2e-{OLD}0",
        f"docker.io/vespiary/broker:e2e-{OLD}-mine",
        f"docker.io/vespiary/broker:my_e2e-{OLD[:-1]}",
        f"docker.io/vespiary/brokers:e2e-{OLD}",
        f"docker.io/someone/broker:e2e-{OLD}",
        f"registry.example/vespiary/broker:e2e-{OLD}",
        f"localhost/vespiary/broker:e2e-{OLD}",
        "localhost/pause:1",
        ID,
    ],
)
def test_what_is_of_this_session_or_of_somebody_else_stays(name: str) -> None:
    assert stale((name, "sha256:a")) == []


def test_the_id_goes_with_the_last_name() -> None:
    old = f"docker.io/vespiary/broker:e2e-{OLD}"
    both = (old, "sha256:a"), (ID, "sha256:a")
    assert set(stale(*both)) == {old, ID}
    for other in (f"docker.io/vespiary/broker:e2e-{OWN}", "docker.io/vespiary/broker:dev"):
        assert stale(*both, (other, "sha256:a")) == [old]
    assert set(stale(*both, ("localhost/pause:1", "sha256:b"))) == {old, ID}


def test_an_empty_list_has_nothing_to_go() -> None:
    assert stale_images("", ()) == stale_images(TITLES, ()) == []


def script(folder: Path, images: str) -> Path:
    """Return a program in place of the cluster's, which notes what it is asked."""
    (folder / "images").write_text(images)
    made = folder / "cluster"
    made.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\n'
        f'[ "$6" = ls ] && cat {folder}/images\n[ "$1" != image ]\n'
    )
    made.chmod(0o755)
    return made


def test_they_are_removed_by_one_command(tmp_path: Path) -> None:
    old = f"docker.io/vespiary/broker:e2e-{OLD}"
    program = script(tmp_path, listing((old, "sha256:a"), ("localhost/pause:1", "sha256:b")))
    assert remove_stale_images(program, (OWN,)) == [old]
    prefix = "enter ctr -n k8s.io images"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"{prefix} ls", f"{prefix} rm --sync {old}"]


def test_nothing_is_removed_where_nothing_is_stale(tmp_path: Path) -> None:
    program = script(tmp_path, listing((f"docker.io/vespiary/broker:e2e-{OWN}", "sha256:a")))
    assert remove_stale_images(program, (OWN,)) == []
    assert (tmp_path / "asked").read_text().splitlines() == ["enter ctr -n k8s.io images ls"]


def test_a_session_removes_them_before_it_builds_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPERATOR", "BROKER", "PIPELINE"):
        monkeypatch.delenv(f"VESPIARY_E2E_{name}_IMAGE", raising=False)
    kept = [
        f"docker.io/vespiary/{name}:e2e-{tree_hash(sources)}"
        for name, sources in (
            ("broker", kubernetes_cluster.IMAGE_SOURCES),
            ("pipeline", PIPELINE_SOURCES),
        )
    ]
    old = f"docker.io/vespiary/broker:e2e-{OLD}"
    images: Any = [(name, f"sha256:{number}") for number, name in enumerate([old, *kept])]
    found = KubernetesCluster(script(tmp_path, listing(*images)))
    with pytest.raises(AssertionError):  # it builds no image
        build_images(found)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[1] == f"enter ctr -n k8s.io images rm --sync {old}"
    assert [line for line in asked[2:] if " rm " in line] == []
    assert asked[-1].startswith("image ")
