import pytest

from vespiary_broker.engine import groups as module
from vespiary_broker.engine.groups import Groups, closes_group, group_id_of
from vespiary_testkit.engine_rig import Rig


@pytest.mark.parametrize(
    ("properties", "group_id"),
    [
        (b"destination:q\nJMSXGroupID:red\n", b"red"),
        (b"JMSXGroupID:red\nJMSXGroupID:blue\n", b"red"),
        (b"xJMSXGroupID:red\n", b""),
        (b"JMSXGroupID:\n", b""),
        (b"", b""),
    ],
)
def test_group_id(properties: bytes, group_id: bytes) -> None:
    assert group_id_of(properties) == group_id


def test_only_minus_one_closes_a_group() -> None:
    assert closes_group(b"a:b\nJMSXGroupSeq:-1\n")
    assert closes_group(b"JMSXGroupSeq:-1\n")
    assert not closes_group(b"JMSXGroupSeq:-11\n")
    assert not closes_group(b"JMSXGroupSeq:1\n")
    assert not closes_group(b"xJMSXGroupSeq:-1\n")


def test_owners_come_and_go() -> None:
    rig = Rig()
    one, two = (rig.subscribe(rig.output(), "/queue/q") for _ in range(2))
    groups = Groups()
    red, blue = (groups.group_of(b"JMSXGroupID:%b\n" % text) for text in (b"red", b"blue"))
    assert red is not None
    assert blue is not None
    groups.assign(red, one)
    groups.assign(blue, two)
    assert (groups.owner(red), groups.owner(blue)) == (one, two)
    groups.release_all(one)
    assert (groups.owner(red), groups.owner(blue)) == (None, two)
    groups.release(blue)
    assert len(groups) == 0


def test_buckets_share_a_fate_and_none_switches_groups_off() -> None:
    groups = Groups(3)
    found = {groups.group_of(b"JMSXGroupID:%d\n" % n) for n in range(100)}
    assert found == {0, 1, 2}
    assert Groups(0).group_of(b"JMSXGroupID:1\n") is None
    assert Groups(3).group_of(b"a:b\n") is None


def test_a_group_keeps_its_consumer_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 4)
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/queue/q")
    groups = Groups()
    for number in range(100):
        group = groups.group_of(b"JMSXGroupID:%d\n" % number)
        assert group is not None
        if groups.owner(group) is None:
            groups.assign(group, consumer)
        assert groups.group_of(b"JMSXGroupID:%d\n" % number) == group
    assert len(groups) <= 8
