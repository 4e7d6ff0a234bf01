"""The verification on real filesystems: loop-mounted images, memory, overlay, FUSE. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import aio_limits, identity, mountinfo, probe
from vespiary_broker.store.volumes.identity import STAMP_NAME, Owner
from vespiary_broker.store.volumes.report import Report, VolumeReport
from vespiary_broker.store.volumes.request import VerificationRequest, VolumeRequest
from vespiary_broker.store.volumes.verification import verify
from vespiary_native import loader
from vespiary_spec.settings import JournalType
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import ExitCode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

MIB = 1 << 20
ORDERS = Owner(name="shop/orders", uid="11")


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def run_program(
    program: str, path: Path | str, *tracer: str | Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, tracer), sys.executable, "-c", program, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
    )


class Mounts:
    """Mounts made by one test, taken back in reverse order, whatever happens to the test."""

    def __init__(self, base: Path, exits: contextlib.ExitStack) -> None:
        self.base = base
        self.exits = exits

    def need(self, *tools: str) -> None:
        for tool in tools:
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")

    def mount(self, name: str, *arguments: str | Path) -> Path:
        path = self.base / name
        path.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", *map(str, arguments), str(path)], capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"can't mount {name} here: {done.stderr.strip()}")
        self.exits.callback(self.unmount, path)
        return path

    def unmount(self, path: Path) -> None:
        if not path.is_mount():
            return
        for _ in range(50):
            if subprocess.run(["umount", str(path)], capture_output=True).returncode == 0:
                return
            time.sleep(0.1)  # a FUSE server that still answers
        run("umount", "-l", path)

    def image(self, name: str, kind: str, size_bytes: int, options: str = "loop") -> Path:
        """Make, and loop-mount, an image; the loop device frees itself at the unmount."""
        self.need(f"mkfs.{kind}")
        image = self.base / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        run(f"mkfs.{kind}", "-q", *(["-F"] if kind == "ext4" else []), image)
        return self.mount(name, "-t", kind, "-o", options, image)

    def tmpfs(self, name: str) -> Path:
        return self.mount(name, "-t", "tmpfs", "-o", "size=16m", "none")

    def overlay(self, name: str) -> Path:
        folders = [self.base / f"{name}-{part}" for part in ("lower", "upper", "work")]
        for folder in folders:
            folder.mkdir()
        options = "lowerdir={},upperdir={},workdir={}".format(*folders)
        return self.mount(name, "-t", "overlay", "-o", options, "overlay")

    def fuse(self, name: str) -> Path:
        self.need("bindfs")
        if not Path("/dev/fuse").exists():
            pytest.skip("this kernel has no FUSE")
        below, path = self.base / f"{name}-below", self.base / name
        below.mkdir()
        path.mkdir()
        run("bindfs", below, path)
        self.exits.callback(self.unmount, path)
        return path


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with contextlib.ExitStack() as exits:
        yield Mounts(tmp_path, exits)


def ask(
    *volumes: Path,
    owner: Owner | None = None,
    journal_type: JournalType = JournalType.ASYNCIO,
    is_ephemeral: bool = False,
    file_bytes: int = MIB,
    demand: int = 64,
) -> Report:
    names = ("journal", "bindings", "paging", "large-messages")
    return verify(
        VerificationRequest(
            volumes=tuple(
                VolumeRequest(
                    name=name, path=str(path), file_bytes=file_bytes, first_bytes=2 * file_bytes
                )
                for name, path in zip(names, volumes, strict=False)
            ),
            journal_type=journal_type,
            aio_demand=demand if journal_type is JournalType.ASYNCIO else 0,
            owner=owner,
            is_ephemeral=is_ephemeral,
            flush_samples=20,
        )
    )


def has_aio() -> bool:
    limits = aio_limits.read(64)
    return loader.is_wanted() and limits.is_known and limits.is_enough


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "size_bytes", "level"),
    [
        ("ext4", 64 * MIB, VerdictLevel.ALLOW),
        ("xfs", 320 * MIB, VerdictLevel.ALLOW),
        ("btrfs", 160 * MIB, VerdictLevel.WARN),
    ],
)
def test_a_disk_is_tried_and_measured(
    mounts: Mounts, kind: str, size_bytes: int, level: VerdictLevel
) -> None:
    path = mounts.image("volume", kind, size_bytes)
    report = ask(path, owner=ORDERS)
    assert report.exit_code is ExitCode.GOOD, report.sentences
    volume = report.volumes[0]
    assert volume.result.filesystem == kind
    assert volume.result.verdict in (level, VerdictLevel.WARN)
    assert (kind in volume.result.reason) is (level is VerdictLevel.WARN)
    assert volume.result.source.startswith("/dev/loop")
    assert volume.device.name == Path(volume.result.source).name
    assert volume.result.write_cache in ("write back", "write through")
    assert volume.device.logical_block_bytes in (512, 4096)
    assert volume.result.direct_io is True
    assert volume.flush_count == 20
    assert volume.result.flush_us_p50 is not None
    assert volume.result.flush_us_p99 is not None
    assert 0 < volume.result.flush_us_p50 <= volume.result.flush_us_p99
    assert volume.result.size_bytes is not None
    assert size_bytes // 2 < volume.result.size_bytes <= size_bytes
    assert volume.result.dedicated is True
    # Nothing but the stamp is left.
    left = {entry.name for entry in path.iterdir()}
    assert left - {"lost+found"} == {STAMP_NAME}
    assert ask(path, owner=ORDERS).exit_code is ExitCode.GOOD


@pytest.mark.ci
@pytest.mark.skipif(not has_aio(), reason="no room for AIO here, or VESPIARY_NATIVE=0")
@pytest.mark.skipif(
    os.environ.get("VESPIARY_RING") == "threads", reason="VESPIARY_RING=threads forces NIO"
)
@pytest.mark.parametrize(("kind", "size_bytes"), [("ext4", 64 * MIB), ("xfs", 320 * MIB)])
def test_aio_really_works_on_a_disk(mounts: Mounts, kind: str, size_bytes: int) -> None:
    report = ask(mounts.image("volume", kind, size_bytes))
    assert report.volumes[0].result.aio is True, report.volumes[0].aio_reason
    assert report.answer.engine == "ASYNCIO"
    assert report.answer.engine_reason == ""


def test_a_switched_off_native_part_gives_nio_with_the_reason(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VESPIARY_RING", "threads")
    report = ask(mounts.image("volume", "ext4", 64 * MIB))
    assert report.answer.engine == "NIO"
    assert "VESPIARY_RING" in report.answer.engine_reason


def fingerprint(path: Path) -> list[tuple[str, int, int, int]]:
    """All names below a folder with size, change and modification time; access times aside."""
    return sorted(
        (str(entry), entry.stat().st_size, entry.stat().st_mtime_ns, entry.stat().st_ctime_ns)
        for entry in [path, *path.rglob("*")]
    )


def refused(mounts: Mounts, kind: str) -> Path:
    if kind == "tmpfs":
        return mounts.tmpfs("volume")
    return mounts.overlay("volume") if kind == "overlay" else mounts.fuse("volume")


@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "fuse"])
def test_a_refused_volume_is_not_touched(mounts: Mounts, kind: str) -> None:
    path = refused(mounts, kind)
    (path / "activemq-data-1.hq").write_bytes(b"messages")
    good = mounts.image("good", "ext4", 64 * MIB)
    before = fingerprint(path), fingerprint(good)
    report = ask(path, good, owner=ORDERS)
    assert report.exit_code is ExitCode.FOUND_BAD
    refusal = report.answer.refusal
    assert kind in refusal
    assert "journal" in refusal
    assert report.answer.engine == ""
    assert (fingerprint(path), fingerprint(good)) == before


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_no_file_of_a_refused_volume_is_even_opened(mounts: Mounts, kind: str) -> None:
    mounts.need("strace")
    path = refused(mounts, kind)
    program = (
        "import sys\n"
        "from vespiary_broker.store.volumes.identity import Owner\n"
        "from vespiary_broker.store.volumes.request import VerificationRequest, VolumeRequest\n"
        "from vespiary_broker.store.volumes.verification import verify\n"
        "volume = VolumeRequest(name='journal', path=sys.argv[1], is_created=True)\n"
        "request = VerificationRequest(volumes=(volume,), owner=Owner(name='orders'))\n"
        "sys.exit(verify(request).exit_code)\n"
    )
    trace = mounts.base / "trace"
    calls = "trace=%file,open_by_handle_at,openat2"
    done = run_program(program, path, "strace", "-f", "-o", trace, "-e", calls)
    if "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == ExitCode.FOUND_BAD, done.stderr
    named = [
        line
        for line in trace.read_text().splitlines()
        if f'"{path}' in line and "execve" not in line
    ]
    looks = ("readlink(", "lstat(", "newfstatat(", "stat(", "statx(", "readlinkat(")
    # Its own name may be resolved; nothing else is asked of it.
    assert [line for line in named if not any(look in line for look in looks)] == []


def test_memory_is_taken_when_losing_it_was_asked_for(mounts: Mounts) -> None:
    report = ask(mounts.tmpfs("volume"), is_ephemeral=True)
    assert report.exit_code is ExitCode.GOOD
    assert report.answer.verdict is VerdictLevel.WARN
    assert "suspicious" not in " ".join(report.sentences)
    assert report.volumes[0].device.name is None


def test_a_read_only_mount_is_refused(mounts: Mounts) -> None:
    mounts.image("volume", "ext4", 64 * MIB)
    run("mount", "-o", "remount,ro", mounts.base / "volume")
    report = ask(mounts.base / "volume")
    assert report.exit_code is ExitCode.FOUND_BAD
    assert "mounted read-only" in report.answer.refusal
    assert str(mounts.base / "volume") in report.answer.refusal


@pytest.mark.ci
def test_a_read_only_bind_of_a_writable_filesystem_is_refused(mounts: Mounts) -> None:
    whole = mounts.image("volume", "ext4", 64 * MIB)
    (whole / "inner").mkdir()
    bound = mounts.mount("bound", "--bind", whole / "inner")
    run("mount", "-o", "remount,ro,bind", bound)
    assert "mounted read-only" in ask(bound).answer.refusal
    assert ask(whole).exit_code is ExitCode.GOOD


def test_unsafe_mount_options_are_warned_of(mounts: Mounts) -> None:
    path = mounts.image("volume", "ext4", 64 * MIB, "loop,data=writeback,nobarrier")
    report = ask(path)
    assert report.exit_code is ExitCode.GOOD
    assert "data=writeback" in report.volumes[0].result.reason
    assert "nobarrier" in report.volumes[0].result.reason


def fill(path: Path) -> None:
    """Take all the space, down to the last block."""
    descriptor = os.open(path / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        for size_bytes in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size_bytes))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.ci
def test_a_full_disk_is_refused_when_new_and_warned_of_when_it_holds_a_store(
    mounts: Mounts,
) -> None:
    path = mounts.image("volume", "ext4", 16 * MIB)
    assert ask(path, owner=ORDERS, file_bytes=MIB).exit_code is ExitCode.GOOD
    report = ask(path, file_bytes=64 * MIB)
    assert report.exit_code is ExitCode.FOUND_BAD
    assert "can't hold one file of 64 MiB" in report.answer.refusal
    report = ask(path, file_bytes=10 * MIB)
    assert "first files take 20 MiB" in report.answer.refusal
    fill(path)
    report = ask(path, owner=ORDERS)
    assert report.exit_code is ExitCode.GOOD
    assert report.answer.verdict is VerdictLevel.WARN
    assert "is full" in report.volumes[0].result.reason
    assert "consume messages" in report.volumes[0].result.reason
    assert report.volumes[0].result.direct_io is None
    assert {entry.name for entry in path.iterdir()} == {"filler", "lost+found", STAMP_NAME}


def test_a_quota_or_race_that_fills_the_disk_during_the_trial_leaves_nothing(
    mounts: Mounts,
) -> None:
    path = mounts.image("volume", "ext4", 16 * MIB)
    fill(path)
    with pytest.raises(OSError, match="No space left"):
        probe.run(str(path))
    assert {entry.name for entry in path.iterdir()} == {"filler", "lost+found"}


@pytest.mark.ci
def test_the_volume_of_another_broker_is_refused_with_both_names(mounts: Mounts) -> None:
    path = mounts.image("volume", "ext4", 64 * MIB)
    assert ask(path, owner=Owner(name="shop/invoices", uid="22")).exit_code is ExitCode.GOOD
    stamp = (path / STAMP_NAME).read_bytes()
    report = ask(path, owner=ORDERS)
    assert report.exit_code is ExitCode.FOUND_BAD
    assert "broker shop/invoices ordinal 0, uid 22" in report.answer.refusal
    assert "broker shop/orders ordinal 0, uid 11" in report.answer.refusal
    assert (path / STAMP_NAME).read_bytes() == stamp


def test_two_volumes_on_one_filesystem_are_not_dedicated(mounts: Mounts) -> None:
    shared = mounts.image("shared", "ext4", 64 * MIB)
    (shared / "a").mkdir()
    (shared / "b").mkdir()
    alone = mounts.image("alone", "ext4", 64 * MIB)
    one = mounts.mount("one", "--bind", shared / "a")
    two = mounts.mount("two", "--bind", shared / "b")
    volumes = ask(one, two, alone).volumes
    assert [volume.result.dedicated for volume in volumes] == [False, False, True]
    assert volumes[0].shares_with == ("bindings",)


@pytest.mark.ci
def test_btrfs_subvolumes_are_one_filesystem(mounts: Mounts) -> None:
    mounts.need("btrfs")
    whole = mounts.image("whole", "btrfs", 160 * MIB)
    run("btrfs", "subvolume", "create", whole / "a")
    run("btrfs", "subvolume", "create", whole / "b")
    source = run("findmnt", "-n", "-o", "SOURCE", whole).strip()
    one = mounts.mount("one", "-o", "subvol=a", source)
    two = mounts.mount("two", "-o", "subvol=b", source)
    assert one.stat().st_dev != two.stat().st_dev
    journal, bindings = ask(one, two).volumes
    assert journal.result.dedicated is False
    assert bindings.result.dedicated is False
    assert journal.device.name == Path(source).name


def test_a_hidden_mount_does_not_speak_for_the_one_above_it(mounts: Mounts) -> None:
    outer = mounts.base / "outer"
    (outer / "journal").mkdir(parents=True)
    inner = mounts.mount("outer/journal", "-t", "tmpfs", "none")
    disk = mounts.image("disk", "ext4", 64 * MIB)
    (disk / "journal").mkdir()
    mounts.mount("outer", "--bind", disk)
    # The tmpfs at the longer path can't be reached any more.
    found = mountinfo.covering(mountinfo.read(), str(inner.resolve()))
    assert found.filesystem == "ext4"
    assert ask(inner).volumes[0].result.filesystem == "ext4"


@pytest.mark.ci
def test_a_folder_of_another_user_is_refused_in_words(mounts: Mounts) -> None:
    path = mounts.image("volume", "ext4", 64 * MIB)
    program = (
        "import os, sys\n"
        "from vespiary_broker.store.volumes.request import VerificationRequest, VolumeRequest\n"
        "from vespiary_broker.store.volumes.verification import verify\n"
        "volume = VolumeRequest(name='journal', path=sys.argv[1])\n"
        "request = VerificationRequest(volumes=(volume,))\n"
        # Once as root, so that everything is imported: the user may not see the interpreter.
        "assert verify(request).exit_code == 0\n"
        "os.setgroups([]); os.setgid(10001); os.setuid(10001)\n"
        "report = verify(request)\n"
        "print(report.answer.refusal)\n"
        "sys.exit(report.exit_code)\n"
    )
    # Pytest's own folders are root's alone; the volume is looked at through a bind mount.
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o755)
        (Path(public) / "volume").mkdir()
        run("mount", "--bind", path, f"{public}/volume")
        try:
            done = run_program(program, f"{public}/volume")
        finally:
            run("umount", f"{public}/volume")
    assert done.returncode == ExitCode.FOUND_BAD, done.stderr
    assert "can't be written by user 10001, group 10001" in done.stdout
    assert "it belongs to 0:0, mode 0755" in done.stdout
    assert "fsGroup" in done.stdout


@pytest.mark.ci
def test_names_with_spaces_and_links(mounts: Mounts) -> None:
    path = mounts.image("a volume", "ext4", 64 * MIB)
    link = mounts.base / "link"
    link.symlink_to(path)
    volume: VolumeReport = ask(link).volumes[0]
    assert volume.result.filesystem == "ext4"
    assert volume.result.source.startswith("/dev/loop")
    assert volume.result.path == str(link)


@pytest.mark.ci
def test_a_stamp_survives_a_remount(mounts: Mounts) -> None:
    path = mounts.image("volume", "ext4", 64 * MIB)
    ask(path, owner=ORDERS)
    mounts.unmount(path)
    again = mounts.mount("volume", "-o", "loop", mounts.base / "volume.img")
    stamp = identity.look(str(again)).stamp
    assert stamp is not None
    assert (stamp.broker_name, stamp.role) == ("shop/orders", "journal")
