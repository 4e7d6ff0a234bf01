"""`vespiary apply`, `check` and `run` on real filesystems: refused ones stay untouched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.small_disk import unmount

PROGRAM = [sys.executable, "-m", "vespiary_broker"]
TIMEOUT_S = 120
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/broker.yaml"


def vespiary(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S
    )


def mount(folder: Path, *options: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"can't mount here: {done.stderr.strip()}")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs."""
    folder = tmp_path / "memory"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=64m", "none")
    yield folder
    unmount(folder)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder of the present filesystem, mounted read-only (root ignores modes)."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount(folder, "--bind", str(folder))
    mount(folder, "-o", "remount,bind,ro")
    yield folder
    unmount(folder)


def test_the_example_passes_and_leaves_its_stamps(tmp_path: Path):
    done = vespiary("apply", "-f", EXAMPLE, "--data", tmp_path / "data", "--check-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "good"
    stamp = json.loads((tmp_path / "data/journal/.vespiary-volume.json").read_text())
    assert (stamp["brokerName"], stamp["role"]) == ("orders", "journal")
    assert not list((tmp_path / "data/journal").glob("*.hq"))


@pytest.mark.ci
def test_a_refused_filesystem_is_not_touched(memory: Path):
    for arguments in (
        ["apply", "-f", EXAMPLE, "--data", memory],
        ["run", "--data", memory, "--port", "0"],
        ["check", "--data", memory],
    ):
        done = vespiary(*arguments)
        assert done.returncode == 1
        told = done.stdout + done.stderr
        assert "The volume journal is on tmpfs, which is refused" in told or (
            "The volume bindings is on tmpfs, which is refused" in told
        )
        assert "Give it a volume with xfs or ext4" in told
        assert "Traceback" not in told
        assert list(memory.iterdir()) == []


def test_one_refused_volume_keeps_the_others_untouched(tmp_path: Path, memory: Path):
    data = tmp_path / "data"
    (data / "bindings").mkdir(parents=True)
    (data / "paging").symlink_to(memory)
    done = vespiary("apply", "-f", EXAMPLE, "--data", data, "--check-only")
    assert done.returncode == 1
    assert "paging" in done.stdout
    assert list((data / "bindings").iterdir()) == []
    assert not (data / "journal").exists()
    assert list(memory.iterdir()) == []


@pytest.mark.ci
def test_a_read_only_disk_is_refused(read_only: Path):
    for arguments in (
        ["apply", "-f", EXAMPLE, "--data", read_only],
        ["run", "--data", read_only, "--port", "0"],
    ):
        done = vespiary(*arguments)
        assert done.returncode == 1
        assert "is mounted read-only" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.ci
def test_memory_is_taken_when_losing_data_is_fine_and_is_not_called_durable(memory: Path):
    command = [*PROGRAM, "run", "--data", str(memory), "--port", "0", "--json", "--ephemeral"]
    command += ["--set", "journal-file-size=1MiB", "--set", "max-disk-usage=100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(6)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert events[-1]["durability"] == "D1"


@pytest.mark.ci
def test_apply_runs_what_the_resource_says(tmp_path: Path):
    manifest = tmp_path / "broker.yaml"
    manifest.write_text(
        "apiVersion: vespiary.dev/v1beta1\nkind: Broker\nmetadata: {name: bills}\n"
        "spec:\n  image: x/y:1\n  config: {journalType: NIO, journalFileSize: 1Mi}\n"
        "  addresses: [{name: bills, queues: [{name: bills}]}]\n"
    )
    command = [*PROGRAM, "apply", "-f", str(manifest), "--data", str(tmp_path / "data")]
    command += ["--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(7)]
        place = f"http://127.0.0.1:{events[-2]['port']}"
        queues = vespiary("queue", "list", "--json", "--api", place)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    assert [event["event"] for event in events] == ["verified", *["listening"] * 5, "ready"]
    assert events[-1]["engine"] == "NIO"
    assert [queue["name"] for queue in json.loads(queues.stdout)] == ["bills"]
    assert "has a meaning in Kubernetes only: spec.image" in told


def test_a_manifest_with_a_wrong_field_starts_nothing(tmp_path: Path):
    manifest = tmp_path / "broker.yaml"
    manifest.write_text(
        "apiVersion: vespiary.dev/v1beta1\nkind: Broker\nmetadata: {name: bills}\n"
        "spec: {config: {jurnalType: NIO}}\n"
    )
    done = vespiary("apply", "-f", manifest, "--data", tmp_path / "data")
    assert done.returncode == 1
    assert "spec.config.jurnalType" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_broker_yaml_is_not_applied(tmp_path: Path):
    (tmp_path / "broker.yaml").write_text("journal-type: NIO\n")
    done = vespiary("apply", "-f", tmp_path / "broker.yaml")
    assert done.returncode == 1
    assert "vespiary run -c" in done.stderr
