"""The composition on stand-ins for a machine: recorded mounts over plain folders."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import identity, mountinfo, probe, statfs
from vespiary_broker.store.volumes.identity import STAMP_NAME, Owner
from vespiary_broker.store.volumes.mountinfo import Mount
from vespiary_broker.store.volumes.report import Report
from vespiary_broker.store.volumes.request import VerificationRequest, VolumeRequest
from vespiary_broker.store.volumes.statfs import Statfs
from vespiary_broker.store.volumes.verification import Machine, verify
from vespiary_spec.errors import EngineUnavailable, ForeignVolume, StorageRefused
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.settings import JournalType
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import ExitCode, decode, encode

GIB = 1 << 30
EXT4, XFS, NFS, TMPFS = 0xEF53, 0x58465342, 0x6969, 0x01021994


def no_ring(depth: int) -> probe.Ring:
    raise OSError(errno.ENOSYS, "Function not implemented")


class PaperMachine:
    """Mounts and sizes as a test wrote them down; folders and files are real."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.lines = ["1 0 254:0 / / rw - ext4 /dev/vda rw"]
        self.spaces: dict[str, Statfs] = {}
        self.asked: list[str] = []
        self.uring_depths: list[int] = []
        self.requests: list[VolumeRequest] = []
        self.sysctl = base / "sysctl"
        self.sysctl.mkdir()
        self.set_aio(0, 65536)

    def set_aio(self, in_use: int, maximum: int) -> None:
        (self.sysctl / "aio-nr").write_text(f"{in_use}\n")
        (self.sysctl / "aio-max-nr").write_text(f"{maximum}\n")

    def add(
        self,
        name: str,
        kind: str = "ext4",
        magic: int = EXT4,
        *,
        options: str = "rw",
        number: str = "",
        source: str = "",
        free_bytes: int = 8 * GIB,
        free_inodes: int = 1000,
        file_bytes: int = 0,
        first_bytes: int = 0,
        is_made: bool = True,
    ) -> Path:
        path = self.base / name
        if is_made:
            path.mkdir()
        index = len(self.lines) + 1
        number = number or f"8:{index}"
        self.lines.append(
            f"{index} 1 {number} / {path} {options} - {kind} {source or f'/dev/sd{index}'} rw"
        )
        self.spaces[str(path)] = Statfs(
            magic=magic,
            size_bytes=10 * GIB,
            free_bytes=free_bytes,
            inodes=1000,
            free_inodes=free_inodes,
            is_read_only=False,
        )
        self.requests.append(
            VolumeRequest(name=name, path=str(path), file_bytes=file_bytes, first_bytes=first_bytes)
        )
        return path

    def read_mounts(self) -> tuple[Mount, ...]:
        return mountinfo.parse("\n".join(self.lines) + "\n")

    def read_statfs(self, path: str) -> Statfs:
        self.asked.append(path)
        return self.spaces[path]

    def open_uring(self, depth: int) -> probe.Ring:
        self.uring_depths.append(depth)
        return no_ring(depth)

    def verify(
        self,
        *,
        journal_type: JournalType = JournalType.NIO,
        open_ring: probe.OpenRing = no_ring,
        read_statfs: Callable[[str], Statfs] | None = None,
        owner: Owner | None = None,
        policy: FilesystemPolicy | None = None,
        is_strict: bool = False,
        is_ephemeral: bool = False,
        is_created: bool = False,
        adopts: bool = False,
        flush_samples: int = 0,
        waits_for_aio: bool = False,
    ) -> Report:
        request = VerificationRequest(
            volumes=tuple(
                VolumeRequest(
                    name=volume.name,
                    path=volume.path,
                    file_bytes=volume.file_bytes,
                    first_bytes=volume.first_bytes,
                    is_created=is_created,
                )
                for volume in self.requests
            ),
            policy=policy,
            journal_type=journal_type,
            is_strict=is_strict,
            aio_demand=500 if journal_type.may_use_aio else 0,
            owner=owner,
            adopts=adopts,
            is_ephemeral=is_ephemeral,
            # Not timed by default: what the folders really lie on is not the test's business.
            flush_samples=flush_samples,
            waits_for_aio=waits_for_aio,
        )
        return verify(
            request,
            Machine(
                read_mounts=self.read_mounts,
                read_statfs=read_statfs or self.read_statfs,
                open_ring=open_ring,
                open_uring=self.open_uring,
                now=lambda: "2026-11-22T10:00:00Z",
                sysfs=self.base / "sysfs",
                sysctl_fs=self.sysctl,
            ),
        )


@pytest.fixture
def machine(tmp_path: Path) -> PaperMachine:
    return PaperMachine(tmp_path)


def result(report: Report, name: str = "journal") -> tuple[VerdictLevel, str]:
    (found,) = [volume.result for volume in report.volumes if volume.result.name == name]
    return found.verdict, found.reason


# --- what is mounted -----------------------------------------------------------------------------


def test_good_volumes_are_taken_with_numbers(machine: PaperMachine) -> None:
    machine.add("journal", "xfs", XFS)
    machine.add("paging")
    report = machine.verify()
    assert report.exit_code is ExitCode.GOOD
    assert report.answer.verdict is VerdictLevel.ALLOW
    assert report.answer.engine == "NIO"
    assert report.answer.engine_reason == ""
    journal = report.volumes[0].result
    assert (journal.filesystem, journal.device, journal.source) == ("xfs", "8:2", "/dev/sd2")
    assert journal.dedicated is True
    assert journal.direct_io is not None
    assert journal.aio is False
    assert journal.flush_us_p50 is None
    assert journal.free_bytes == 8 * GIB
    assert decode(encode(report.answer)) == report.answer


def test_a_slow_scheduler_is_a_warning_that_starts_all_the_same(machine: PaperMachine) -> None:
    machine.add("journal", number="8:0")
    disk = machine.base / "sysfs" / "devices" / "sda"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "scheduler").write_text("none [bfq]\n")
    (machine.base / "sysfs" / "dev" / "block").mkdir(parents=True)
    (machine.base / "sysfs" / "dev" / "block" / "8:0").symlink_to(disk)
    report = machine.verify()
    assert report.answer.verdict is VerdictLevel.WARN
    assert "the disk sda with the I/O scheduler bfq" in report.volumes[0].result.reason
    assert report.volumes[0].result.free_inodes == 1000


def test_one_refused_volume_keeps_all_of_them_untouched(machine: PaperMachine) -> None:
    machine.add("bindings")
    machine.add("journal", "nfs4", NFS, number="0:31", source="server:/export")
    report = machine.verify(owner=Owner(name="orders"), is_created=True)
    assert report.exit_code is ExitCode.FOUND_BAD
    level, reason = result(report)
    assert level is VerdictLevel.DENY
    assert "journal" in reason
    assert "nfs4" in reason
    assert "xfs or ext4" in reason
    assert report.answer.refusal == reason
    assert report.answer.engine == ""
    assert report.engine is None
    assert report.volumes[0].result.direct_io is None
    assert list((machine.base / "bindings").iterdir()) == []
    assert list((machine.base / "journal").iterdir()) == []
    # statfs on a dead server would hang, so a refused type is not asked.
    assert machine.asked == [str(machine.base / "bindings")]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "overlay"])
def test_pages_may_lie_nowhere_where_a_journal_may_not(machine: PaperMachine, kind: str) -> None:
    machine.add("journal", "xfs", XFS)
    machine.add("paging", kind, NFS, number="0:31", source="server:/export")
    report = machine.verify()
    assert report.exit_code is ExitCode.FOUND_BAD
    level, reason = result(report, "paging")
    assert level is VerdictLevel.DENY
    assert "paging" in reason
    assert kind in reason
    assert report.answer.refusal == reason
    assert list((machine.base / "paging").iterdir()) == []


def test_a_type_that_statfs_contradicts_is_refused(machine: PaperMachine) -> None:
    machine.add("journal", "ext4", NFS)
    level, reason = result(machine.verify())
    assert level is VerdictLevel.DENY
    assert "ext4" in reason
    assert "nfs" in reason


def test_a_known_type_with_a_number_that_nobody_knows_is_refused(machine: PaperMachine) -> None:
    machine.add("journal", "ext4", 0x1234)
    level, reason = result(machine.verify())
    assert level is VerdictLevel.DENY
    assert "0x1234" in reason


def test_a_strange_type_that_the_policy_allows_is_taken(machine: PaperMachine) -> None:
    machine.add("journal", "vxfs", 0xA501FCF5)
    policy = FilesystemPolicy(allow=("vxfs",))
    assert machine.verify(policy=policy).exit_code is ExitCode.GOOD
    assert machine.verify().exit_code is ExitCode.FOUND_BAD


def test_warnings_do_not_stop(machine: PaperMachine) -> None:
    machine.add("journal", options="rw,nobarrier,data=writeback")
    report = machine.verify()
    level, reason = result(report)
    assert report.exit_code is ExitCode.GOOD
    assert level is VerdictLevel.WARN
    assert "nobarrier" in reason
    assert "data=writeback" in reason


def test_a_read_only_mount_is_refused(machine: PaperMachine) -> None:
    machine.add("journal", options="ro,relatime")
    level, reason = result(machine.verify())
    assert level is VerdictLevel.DENY
    assert "read-only" in reason
    assert str(machine.base / "journal") in reason


def test_memory_is_refused_unless_asked_for(machine: PaperMachine) -> None:
    machine.add("journal", "tmpfs", TMPFS, number="0:43")
    assert result(machine.verify())[0] is VerdictLevel.DENY
    level, reason = result(machine.verify(is_ephemeral=True))
    assert level is VerdictLevel.WARN
    assert "ephemeral" in reason


def test_volumes_on_one_filesystem_are_not_dedicated_and_timed_once(
    machine: PaperMachine,
) -> None:
    machine.add("bindings", number="8:7")
    machine.add("journal", number="8:7")
    machine.add("paging", number="8:8")
    bindings, journal, paging = machine.verify(flush_samples=3).volumes
    assert bindings.result.dedicated is False
    assert journal.shares_with == ("bindings",)
    assert paging.result.dedicated is True
    assert (bindings.flush_count, journal.flush_count, paging.flush_count) == (3, 3, 3)
    assert journal.result.flush_us_p50 == bindings.result.flush_us_p50
    assert journal.result.flush_us_p99 == bindings.result.flush_us_p99


def test_unreadable_mounts_are_a_refusal(machine: PaperMachine) -> None:
    machine.add("journal")
    machine.lines.append("garbage")
    level, reason = result(machine.verify())
    assert level is VerdictLevel.DENY
    assert "line 3" in reason


def test_a_failing_statfs_is_a_refusal(machine: PaperMachine) -> None:
    machine.add("journal")

    def fail(path: str) -> Statfs:
        raise OSError(errno.ESTALE, "Stale file handle")

    level, reason = result(machine.verify(read_statfs=fail))
    assert level is VerdictLevel.DENY
    assert "Stale file handle" in reason


# --- what works ----------------------------------------------------------------------------------


def test_a_missing_folder_is_refused_or_made(machine: PaperMachine) -> None:
    path = machine.add("journal", is_made=False)
    machine.spaces[str(path.parent)] = machine.spaces[str(path)]
    machine.lines[1] = machine.lines[1].replace(str(path), str(path.parent))
    level, reason = result(machine.verify())
    assert level is VerdictLevel.DENY
    assert "does not exist" in reason
    assert not path.exists()
    assert machine.verify(is_created=True).exit_code is ExitCode.GOOD
    assert path.stat().st_mode & 0o777 == 0o750


def test_a_file_in_place_of_the_folder_is_refused(machine: PaperMachine) -> None:
    path = machine.add("journal", is_made=False)
    path.write_text("x")
    assert "is no folder" in result(machine.verify())[1]
    level, reason = result(machine.verify(is_created=True))
    assert level is VerdictLevel.DENY
    assert path.read_text() == "x"
    assert reason


@pytest.mark.parametrize(
    ("free_bytes", "free_inodes", "words"),
    [(4096, 5, "is full"), (GIB, 0, "inodes"), (GIB, 5, "first files take 2 GiB")],
)
def test_without_space_a_new_store_is_refused_and_an_old_one_warned(
    machine: PaperMachine, free_bytes: int, free_inodes: int, words: str
) -> None:
    path = machine.add(
        "journal",
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        file_bytes=GIB + 1,
        first_bytes=2 * GIB,
    )
    report = machine.verify()
    assert report.exit_code is ExitCode.FOUND_BAD
    assert words in result(report)[1]
    (path / "activemq-data-1.hq").touch()
    report = machine.verify()
    assert report.exit_code is ExitCode.GOOD
    level, reason = result(report)
    assert level is VerdictLevel.WARN
    assert "consume messages, or enlarge the volume" in reason


def test_a_full_volume_that_holds_nothing_yet_keeps_no_store_from_starting(
    machine: PaperMachine,
) -> None:
    """A store without large messages has an empty folder for them, on the disk that is full."""
    journal = machine.add(
        "journal", free_bytes=0, file_bytes=1024 * 1024, first_bytes=2 * 1024 * 1024
    )
    machine.add("large-messages", free_bytes=0)
    assert machine.verify().exit_code is ExitCode.FOUND_BAD
    (journal / "activemq-data-1.hq").touch()
    report = machine.verify()
    assert report.exit_code is ExitCode.GOOD
    assert {volume.result.verdict for volume in report.volumes} == {VerdictLevel.WARN}


def test_a_file_larger_than_the_filesystem_is_refused(machine: PaperMachine) -> None:
    machine.add("journal", file_bytes=11 * GIB)
    assert "can't hold one file of 11 GiB" in result(machine.verify())[1]


# --- the engine ----------------------------------------------------------------------------------


def test_another_engine_than_asked_has_a_reason_and_strict_refuses(machine: PaperMachine) -> None:
    machine.add("journal")
    lenient = machine.verify(journal_type=JournalType.ASYNCIO)
    assert lenient.exit_code is ExitCode.GOOD
    assert lenient.answer.engine == "NIO"
    assert "ENOSYS" in lenient.answer.engine_reason
    assert lenient.answer.engine_reason in lenient.sentences
    strict = machine.verify(
        journal_type=JournalType.ASYNCIO, is_strict=True, owner=Owner(name="orders")
    )
    assert strict.exit_code is ExitCode.FOUND_BAD
    assert "journal-type-strict" in strict.answer.refusal
    assert strict.sentences[0] == strict.answer.refusal
    assert strict.answer.engine == ""
    assert not (machine.base / "journal" / STAMP_NAME).exists()


def test_an_exhausted_limit_is_reported_with_its_numbers(machine: PaperMachine) -> None:
    machine.add("journal")
    machine.set_aio(65500, 65536)
    report = machine.verify(journal_type=JournalType.ASYNCIO)
    assert (report.answer.aio.nr, report.answer.aio.max_nr) == (65500, 65536)
    assert report.answer.aio.demand == 500
    assert "sysctl -w fs.aio-max-nr=131072" in report.answer.engine_reason


def test_the_journals_ring_is_tried_with_the_whole_demand(machine: PaperMachine) -> None:
    machine.add("bindings")
    machine.add("journal")
    depths: list[int] = []

    def note(depth: int) -> probe.Ring:
        depths.append(depth)
        return no_ring(depth)

    machine.verify(journal_type=JournalType.ASYNCIO, open_ring=note)
    assert depths == [1, 500]


def test_io_uring_is_tried_on_the_journals_volume_alone(machine: PaperMachine) -> None:
    machine.add("bindings")
    machine.add("journal")
    report = machine.verify(journal_type=JournalType.IO_URING, flush_samples=0)
    assert report.answer.engine == "NIO"
    assert report.answer.engine_reason.startswith("NIO is used instead of IO_URING: io_uring does")
    assert "; and Linux AIO does not work" in report.answer.engine_reason
    assert len(machine.uring_depths) == 1


def test_without_a_journal_no_engine_is_claimed(machine: PaperMachine) -> None:
    machine.add("paging")
    report = machine.verify()
    assert report.exit_code is ExitCode.GOOD
    assert report.engine is None
    assert report.answer.engine == ""


# --- identity ------------------------------------------------------------------------------------


def test_stamps_are_written_to_all_or_to_none(machine: PaperMachine) -> None:
    bindings, journal = machine.add("bindings"), machine.add("journal")
    (journal / "foreign.txt").touch()
    orders = Owner(name="orders")
    report = machine.verify(owner=orders)
    assert report.exit_code is ExitCode.FOUND_BAD
    assert "holds files but no" in result(report)[1]
    assert result(report, "bindings")[0] is VerdictLevel.ALLOW
    assert not (bindings / STAMP_NAME).exists()
    (journal / "foreign.txt").unlink()
    assert machine.verify(owner=orders).exit_code is ExitCode.GOOD
    assert (bindings / STAMP_NAME).exists()
    assert (journal / STAMP_NAME).exists()
    assert machine.verify(owner=orders).exit_code is ExitCode.GOOD
    foreign = machine.verify(owner=Owner(name="invoices"))
    assert foreign.exit_code is ExitCode.FOUND_BAD
    assert "broker orders ordinal 0" in foreign.answer.refusal
    assert "broker invoices ordinal 0" in foreign.answer.refusal


def test_a_stamp_that_is_a_link_is_refused_in_words(machine: PaperMachine) -> None:
    journal = machine.add("journal")
    (journal / STAMP_NAME).symlink_to("/dev/null")
    level, reason = result(machine.verify(owner=Owner(name="orders")))
    assert level is VerdictLevel.DENY
    assert STAMP_NAME in reason


def test_a_stamp_that_cannot_be_written_is_refused_in_words(machine: PaperMachine) -> None:
    journal = machine.add("journal")
    machine.verify(owner=Owner(name="orders", uid="1"))
    stamp = identity.look(str(journal)).stamp
    assert stamp is not None
    (journal / STAMP_NAME).unlink()
    (journal / STAMP_NAME).mkdir()
    level, reason = result(machine.verify(owner=Owner(name="orders")))
    assert level is VerdictLevel.DENY
    assert "Is a directory" in reason


def test_each_kind_of_refusal_is_an_error_of_its_own(machine: PaperMachine) -> None:
    journal = machine.add("journal")
    machine.verify(owner=Owner(name="orders")).raise_if_refused()
    with pytest.raises(EngineUnavailable, match="journal-type-strict"):
        machine.verify(journal_type=JournalType.ASYNCIO, is_strict=True).raise_if_refused()
    with pytest.raises(ForeignVolume, match="broker orders ordinal 0"):
        machine.verify(owner=Owner(name="invoices")).raise_if_refused()
    with pytest.raises(StorageRefused, match="is on ext4, which is refused"):
        machine.verify(policy=FilesystemPolicy(deny=("ext4",))).raise_if_refused()
    (journal / STAMP_NAME).unlink()
    journal.rmdir()
    with pytest.raises(StorageRefused, match="does not exist"):
        machine.verify().raise_if_refused()


# --- the report ----------------------------------------------------------------------------------


def test_the_json_for_people_has_readable_names(machine: PaperMachine) -> None:
    machine.add("journal", options="rw,nobarrier")
    plain = machine.verify().to_dict()
    assert plain["verdict"] == "warn"
    assert plain["aio"] == {"maxNr": 65536, "nr": 0, "demand": 0}
    (volume,) = plain["volumes"]
    assert volume["name"] == "journal"
    assert volume["filesystem"] == "ext4"
    assert volume["deviceName"] is None
    assert volume["flushUsP50"] is None
    assert list(volume["sharesWith"]) == []
    assert volume["findings"][0]["level"] == "warn"


def test_a_name_is_asked_for_once() -> None:
    volume = VolumeRequest(name="journal", path="/a")
    with pytest.raises(ValueError, match="named once"):
        VerificationRequest(volumes=(volume, volume))


def test_this_machine_is_the_default(tmp_path: Path) -> None:
    volume = VolumeRequest(name="journal", path=str(tmp_path))
    report = verify(VerificationRequest(volumes=(volume,), flush_samples=1))
    number = tmp_path.stat().st_dev
    mount = mountinfo.covering(mountinfo.read(), str(tmp_path.resolve()))
    assert report.volumes[0].result.filesystem == mount.filesystem
    assert number
    assert statfs.read(str(tmp_path)).magic


def test_a_lack_of_requests_that_is_waited_for_is_no_refusal(tmp_path: Path) -> None:
    machine = PaperMachine(tmp_path)
    machine.add("journal")
    machine.set_aio(65400, 65536)
    report = machine.verify(journal_type=JournalType.ASYNCIO, is_strict=True, waits_for_aio=True)
    assert report.refused_at is None
    answer = decode(encode(report.answer))
    assert answer.exit_code is ExitCode.GOOD
    assert answer.engine == "ASYNCIO"
    assert answer.waits.startswith("The broker waits for AIO requests: 500 AIO operations are")
    assert answer.volumes[0].aio is None, "the trial failed for want of requests, not of the volume"
    assert answer.waits in report.sentences
