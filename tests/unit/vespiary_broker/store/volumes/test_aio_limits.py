from pathlib import Path

import pytest

from vespiary_broker.store.volumes import aio_limits
from vespiary_broker.store.volumes.aio_limits import AioLimits


@pytest.mark.parametrize(
    ("demand", "in_use", "maximum", "is_enough", "needed"),
    [
        (500, 0, 65536, True, 65536),
        (500, 65036, 65536, True, 65536),
        (500, 65037, 65536, False, 131072),
        (500, 70000, 65536, False, 131072),
        (0, 65536, 65536, True, 65536),
        (65536, 65536, 65536, False, 131072),
        (1, 0, 0, False, 65536),
        (500, 0, 1048576, True, 1048576),
    ],
)
def test_the_numbers_decide(
    demand: int, in_use: int, maximum: int, is_enough: bool, needed: int
) -> None:
    limits = AioLimits(demand=demand, in_use=in_use, maximum=maximum)
    assert limits.is_enough is is_enough
    assert limits.needed_maximum == needed


def test_a_shortage_says_the_numbers_and_the_cure() -> None:
    sentence = AioLimits(demand=500, in_use=65500, maximum=65536).sentence
    for part in (
        "500 AIO operations are needed",
        "36 of fs.aio-max-nr=65536 are free",
        "fs.aio-nr=65500",
        "BrokerNodeTuning",
        "sysctl -w fs.aio-max-nr=131072",
        "journal-max-io",
    ):
        assert part in sentence
    assert "sysctl" not in AioLimits(demand=5, in_use=0, maximum=65536).sentence


def test_unknown_limits_are_left_to_the_trial_and_said() -> None:
    limits = AioLimits(demand=500, in_use=None, maximum=None)
    assert not limits.is_known
    assert limits.is_enough
    assert "can't be read" in limits.sentence
    assert "500" in limits.sentence


def test_the_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "aio-nr").write_text("17\n")
    (tmp_path / "aio-max-nr").write_text("65536\n")
    limits = aio_limits.read(500, folder=tmp_path)
    assert (limits.in_use, limits.maximum, limits.demand) == (17, 65536, 500)


@pytest.mark.parametrize("content", [None, "", "many\n"])
def test_missing_or_strange_files_are_unknown(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "aio-nr").write_text(content)
        (tmp_path / "aio-max-nr").write_text(content)
    assert not aio_limits.read(1, folder=tmp_path).is_known
