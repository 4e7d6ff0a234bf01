import json
import os
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import identity
from vespiary_broker.store.volumes.identity import STAMP_NAME, Action, Decision, Owner

NOW = "2026-11-22T10:00:00Z"
LATER = "2026-12-24T18:00:00Z"
ORDERS = Owner(name="shop/orders", uid="11", ordinal=0)
ROLES = ("bindings", "journal")


@pytest.fixture
def volumes(tmp_path: Path) -> dict[str, Path]:
    paths = {role: tmp_path / role for role in ROLES}
    for path in paths.values():
        path.mkdir()
    return paths


def settle(
    volumes: dict[str, Path],
    owner: Owner = ORDERS,
    now: str = NOW,
    *,
    adopt: bool = False,
    adopted: tuple[str, ...] = (),
) -> dict[str, Decision]:
    """Look, decide and write, as the verification does."""
    findings = {role: identity.look(str(path)) for role, path in volumes.items()}
    decisions = identity.decide(findings, owner, created=now, adopt=adopt, adopted=adopted)
    if all(decision.action is not Action.REFUSE for decision in decisions.values()):
        for role, decision in decisions.items():
            if decision.action is Action.WRITE and decision.stamp is not None:
                identity.write(str(volumes[role]), decision.stamp)
    return decisions


def actions(decisions: dict[str, Decision]) -> list[Action]:
    return [decision.action for decision in decisions.values()]


def test_blank_volumes_are_stamped_once(volumes: dict[str, Path]) -> None:
    assert actions(settle(volumes)) == [Action.WRITE, Action.WRITE]
    assert json.loads((volumes["journal"] / STAMP_NAME).read_text()) == {
        "format": 1,
        "brokerName": "shop/orders",
        "brokerUid": "11",
        "ordinal": 0,
        "role": "journal",
        "volumes": ["bindings", "journal"],
        "created": NOW,
    }
    before = (volumes["journal"] / STAMP_NAME).stat()
    assert actions(settle(volumes, now=LATER)) == [Action.KEEP, Action.KEEP]
    after = (volumes["journal"] / STAMP_NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [entry.name for entry in volumes["journal"].iterdir()] == [STAMP_NAME]


def test_lost_and_found_is_no_content(volumes: dict[str, Path]) -> None:
    (volumes["journal"] / "lost+found").mkdir()
    assert actions(settle(volumes)) == [Action.WRITE, Action.WRITE]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Owner(name="shop/invoices", uid="22"), "broker shop/invoices ordinal 0, uid 22"),
        (Owner(name="shop/orders", uid="11", ordinal=1), "broker shop/orders ordinal 1, uid 11"),
        (Owner(name="test/orders", uid="33"), "broker test/orders ordinal 0, uid 33"),
    ],
)
def test_the_volume_of_another_broker_is_refused_with_both_names(
    volumes: dict[str, Path], other: Owner, words: str
) -> None:
    settle(volumes, other)
    before = (volumes["journal"] / STAMP_NAME).read_bytes()
    decision = settle(volumes)["journal"]
    assert decision.action is Action.REFUSE
    assert f"its stamp says journal of {words}" in decision.sentence
    assert "wanted is journal of broker shop/orders ordinal 0, uid 11" in decision.sentence
    assert str(volumes["journal"]) in decision.sentence
    assert (volumes["journal"] / STAMP_NAME).read_bytes() == before


def test_swapped_volumes_are_refused(volumes: dict[str, Path]) -> None:
    settle(volumes)
    swapped = {"bindings": volumes["journal"], "journal": volumes["bindings"]}
    decisions = settle(swapped)
    assert actions(decisions) == [Action.REFUSE, Action.REFUSE]
    assert "its stamp says bindings of" in decisions["journal"].sentence


def test_a_resource_made_anew_takes_its_volumes_over_and_says_so(
    volumes: dict[str, Path],
) -> None:
    settle(volumes)
    again = Owner(name="shop/orders", uid="99", ordinal=0)
    decision = settle(volumes, again, LATER)["journal"]
    assert decision.action is Action.WRITE
    assert "uid 11" in decision.sentence
    assert "uid 99" in decision.sentence
    stamp = identity.look(str(volumes["journal"])).stamp
    assert stamp is not None
    assert (stamp.broker_uid, stamp.created) == ("99", NOW)
    assert settle(volumes, again)["journal"] == Decision(action=Action.KEEP, stamp=stamp)


def test_a_run_without_a_uid_keeps_the_one_that_is_noted(volumes: dict[str, Path]) -> None:
    settle(volumes)
    assert actions(settle(volumes, Owner(name="shop/orders"))) == [Action.KEEP, Action.KEEP]


def test_files_without_a_stamp_are_refused_or_adopted(volumes: dict[str, Path]) -> None:
    (volumes["journal"] / "activemq-data-1.hq").touch()
    decisions = settle(volumes)
    assert actions(decisions) == [Action.WRITE, Action.REFUSE]
    assert "holds files but no .vespiary-volume.json" in decisions["journal"].sentence
    assert not (volumes["bindings"] / STAMP_NAME).exists()
    assert actions(settle(volumes, adopt=True)) == [Action.WRITE, Action.WRITE]


def test_a_blank_volume_beside_a_full_one_is_refused_or_adopted(volumes: dict[str, Path]) -> None:
    settle(volumes)
    (volumes["bindings"] / "activemq-bindings-1.bindings").touch()
    (volumes["journal"] / STAMP_NAME).unlink()
    decision = settle(volumes)["journal"]
    assert decision.action is Action.REFUSE
    assert "is blank, but volume bindings of broker shop/orders" in decision.sentence
    assert actions(settle(volumes, adopt=True)) == [Action.KEEP, Action.WRITE]


def test_volumes_that_are_named_one_by_one_are_adopted_and_no_other(
    volumes: dict[str, Path],
) -> None:
    settle(volumes, Owner(name="old/orders", uid="9"))
    refused = settle(volumes, adopted=("journal",))
    assert actions(refused) == [Action.REFUSE, Action.WRITE]
    assert [each.may_adopt for each in refused.values()] == [True, False]
    before = (volumes["journal"] / STAMP_NAME).read_text()
    assert "old/orders" in before, "nothing is written while another volume is refused"
    assert actions(settle(volumes, adopt=True)) == [Action.REFUSE, Action.REFUSE]
    decisions = settle(volumes, adopted=("journal", "bindings"))
    assert [each.is_adopted for each in decisions.values()] == [True, True]
    assert "said that it is journal of broker old/orders ordinal 0, uid 9, and was adopted by " in (
        decisions["journal"].sentence
    )
    again = settle(volumes, adopted=("journal", "bindings"))
    assert actions(again) == [Action.KEEP, Action.KEEP]
    assert not any(each.is_adopted for each in again.values()), "once is enough"


def test_a_volume_of_another_role_is_adopted_by_nobody(volumes: dict[str, Path]) -> None:
    settle(volumes)
    swapped = {"bindings": volumes["journal"], "journal": volumes["bindings"]}
    decisions = settle(swapped, adopted=("bindings", "journal"))
    assert actions(decisions) == [Action.REFUSE, Action.REFUSE]
    assert not any(each.may_adopt for each in decisions.values())


def test_a_first_start_that_was_cut_off_between_two_stamps_goes_on(
    volumes: dict[str, Path],
) -> None:
    settle(volumes)
    (volumes["journal"] / STAMP_NAME).unlink()
    assert actions(settle(volumes)) == [Action.KEEP, Action.WRITE]


def test_a_volume_that_is_added_later_is_welcome(volumes: dict[str, Path], tmp_path: Path) -> None:
    settle(volumes)
    (volumes["journal"] / "activemq-data-1.hq").touch()
    volumes["jms"] = tmp_path / "jms"
    volumes["jms"].mkdir()
    assert actions(settle(volumes)) == [Action.WRITE, Action.WRITE, Action.WRITE]
    # A look at one volume alone does not forget the others.
    assert actions(settle({"journal": volumes["journal"]})) == [Action.KEEP]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 1}',
        b"\xff\xfe",
        b"x" * 20000,
        b'{"format":2,"brokerName":"a","brokerUid":"","ordinal":0,"role":"journal",'
        b'"volumes":[],"created":""}',
    ],
)
def test_a_damaged_stamp_is_refused(volumes: dict[str, Path], content: bytes) -> None:
    (volumes["journal"] / STAMP_NAME).write_bytes(content)
    decision = settle(volumes)["journal"]
    assert decision.action is Action.REFUSE
    assert STAMP_NAME in decision.sentence
    assert (volumes["journal"] / STAMP_NAME).read_bytes() == content


def test_a_link_in_place_of_the_stamp_is_not_followed(
    volumes: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (volumes["journal"] / STAMP_NAME).symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in identity.look(str(volumes["journal"])).damage


def test_a_pipe_in_place_of_the_stamp_does_not_hang(volumes: dict[str, Path]) -> None:
    os.mkfifo(volumes["journal"] / STAMP_NAME)
    assert identity.look(str(volumes["journal"])).damage


def test_a_failed_write_leaves_the_old_stamp_and_no_remains(volumes: dict[str, Path]) -> None:
    settle(volumes)
    stamp = identity.look(str(volumes["journal"])).stamp
    assert stamp is not None
    (volumes["journal"] / STAMP_NAME).unlink()
    (volumes["journal"] / STAMP_NAME).mkdir()
    with pytest.raises(OSError, match="directory"):
        identity.write(str(volumes["journal"]), stamp)
    assert [entry.name for entry in volumes["journal"].iterdir()] == [STAMP_NAME]
