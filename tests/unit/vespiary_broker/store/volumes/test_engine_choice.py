import pytest

from vespiary_broker.store.volumes import engine_choice
from vespiary_broker.store.volumes.aio_limits import AioLimits
from vespiary_broker.store.volumes.engine_choice import EngineChoice
from vespiary_broker.store.volumes.probe import Capability
from vespiary_spec.settings import JournalType

WORKS = Capability(True)
ROOM = AioLimits(demand=500, in_use=0, maximum=65536)
NO_ROOM = AioLimits(demand=500, in_use=65500, maximum=65536)


def choose(
    asked: JournalType = JournalType.ASYNCIO,
    direct: Capability = WORKS,
    aio: Capability = WORKS,
    limits: AioLimits = ROOM,
    is_strict: bool = False,
    uring: Capability = WORKS,
    waits_for_aio: bool = False,
) -> EngineChoice:
    return engine_choice.choose(
        asked,
        direct=direct,
        aio=aio,
        limits=limits,
        is_strict=is_strict,
        uring=uring,
        waits_for_aio=waits_for_aio,
    )


def test_asyncio_when_everything_works() -> None:
    choice = choose()
    assert choice.effective is JournalType.ASYNCIO
    assert choice.is_as_asked
    assert "fs.aio-max-nr=65536" in choice.reason


def test_nio_as_asked_needs_no_trial() -> None:
    choice = choose(JournalType.NIO, Capability(False, "x"), Capability(False, "x"), NO_ROOM, True)
    assert choice.effective is JournalType.NIO
    assert choice.is_as_asked


@pytest.mark.parametrize(
    ("direct", "aio", "limits", "words"),
    [
        (WORKS, WORKS, NO_ROOM, "sysctl -w fs.aio-max-nr=131072"),
        (WORKS, Capability(False, "EAGAIN"), NO_ROOM, "36 of fs.aio-max-nr"),
        (Capability(False, "no O_DIRECT"), Capability(False, "x"), ROOM, "no O_DIRECT"),
        (WORKS, Capability(False, "io_setup: ENOSYS"), ROOM, "io_setup: ENOSYS"),
        (
            WORKS,
            Capability(False, "ENOSYS"),
            AioLimits(demand=1, in_use=None, maximum=None),
            "ENOSYS",
        ),
    ],
)
def test_an_obstacle_is_named_and_gives_nio_or_a_refusal(
    direct: Capability, aio: Capability, limits: AioLimits, words: str
) -> None:
    lenient = choose(direct=direct, aio=aio, limits=limits)
    assert lenient.effective is JournalType.NIO
    assert not lenient.is_as_asked
    assert lenient.reason.startswith("NIO is used instead of ASYNCIO: ")
    assert words in lenient.reason
    strict = choose(direct=direct, aio=aio, limits=limits, is_strict=True)
    assert strict.effective is None
    assert "journal-type-strict" in strict.reason
    assert words in strict.reason


def test_unknown_limits_with_a_trial_that_worked_are_said() -> None:
    choice = choose(limits=AioLimits(demand=500, in_use=None, maximum=None))
    assert choice.effective is JournalType.ASYNCIO
    assert "can't be read" in choice.reason


def test_no_trial_is_no_evidence_but_is_said() -> None:
    untried = Capability(None, "the volume is full")
    choice = choose(direct=untried, aio=untried, is_strict=True)
    assert choice.effective is JournalType.ASYNCIO
    assert "not tried" in choice.reason
    assert "the volume is full" in choice.reason


# --- IO_URING -------------------------------------------------------------------------------------

FORBIDDEN = Capability(False, "a filter forbids io_uring_setup")


def test_io_uring_when_it_works_needs_no_aio() -> None:
    choice = choose(
        JournalType.IO_URING, aio=Capability(False, "ENOSYS"), limits=NO_ROOM, is_strict=True
    )
    assert choice.effective is JournalType.IO_URING
    assert choice.is_as_asked
    assert choice.reason.endswith("io_uring works on the journal's volume.")


def test_io_uring_that_was_not_tried_is_said() -> None:
    choice = choose(JournalType.IO_URING, uring=Capability(None, "the volume is full"))
    assert choice.effective is JournalType.IO_URING
    assert "was not tried (the volume is full)" in choice.reason


def test_io_uring_falls_back_to_asyncio() -> None:
    choice = choose(JournalType.IO_URING, uring=FORBIDDEN)
    assert choice.effective is JournalType.ASYNCIO
    assert not choice.is_as_asked
    assert choice.reason == (
        "ASYNCIO is used instead of IO_URING: io_uring does not work on the journal's volume: "
        "a filter forbids io_uring_setup."
    )


def test_io_uring_and_asyncio_that_do_not_work_are_both_named() -> None:
    choice = choose(JournalType.IO_URING, uring=FORBIDDEN, limits=NO_ROOM)
    assert choice.effective is JournalType.NIO
    assert choice.reason.startswith("NIO is used instead of IO_URING: io_uring does not work")
    assert "a filter forbids io_uring_setup; and 500 AIO operations are needed" in choice.reason
    assert choice.reason.count(". ") == 0


def test_io_uring_without_direct_io_is_nio_for_that_reason_alone() -> None:
    no_direct = Capability(False, "EINVAL")
    choice = choose(JournalType.IO_URING, direct=no_direct, aio=no_direct, uring=no_direct)
    assert choice.effective is JournalType.NIO
    assert choice.reason.count("does not take direct I/O") == 1


def test_strict_io_uring_takes_nothing_else() -> None:
    choice = choose(JournalType.IO_URING, uring=FORBIDDEN, is_strict=True)
    assert choice.effective is None
    assert "journal-type-strict forbids another engine" in choice.reason
    assert "a filter forbids io_uring_setup" in choice.reason


def test_a_lack_of_requests_may_be_waited_for() -> None:
    for is_strict in (False, True):
        choice = choose(limits=NO_ROOM, waits_for_aio=True, is_strict=is_strict)
        assert choice.effective is JournalType.ASYNCIO
        assert choice.waits.startswith("The broker waits for AIO requests: ")
        assert "sysctl -w fs.aio-max-nr=" in choice.waits
    assert not choose(waits_for_aio=True).waits, "there is room"
    without = choose(limits=NO_ROOM, waits_for_aio=True, direct=Capability(False, "EINVAL"))
    assert (without.effective, without.waits) == (JournalType.NIO, ""), "room would not help"
    uring = JournalType.IO_URING
    choice = choose(uring, uring=FORBIDDEN, limits=NO_ROOM, waits_for_aio=True)
    assert choice.effective is JournalType.ASYNCIO
    assert "for io_uring can't be had" in choice.waits
    assert not choose(uring, limits=NO_ROOM, waits_for_aio=True).waits, "it needs none of them"
