"""Which match decides, who has which roles, and what a wildcard needs."""

from __future__ import annotations

import itertools

import pytest

from vespiary_broker.engine.permissions import Permissions, queue_permission
from vespiary_broker.engine.users import User
from vespiary_broker.engine.wildcards import Pattern, WildcardSyntax, contains, overlaps
from vespiary_spec.errors import NotPermitted
from vespiary_spec.settings import Permission, SecuritySettings

SEND, CONSUME = Permission.SEND, Permission.CONSUME


def user(name: str, *roles: str) -> User:
    return User(name, b"", 4096, b"", b"", frozenset(roles))


def users(*found: User) -> dict[str, User]:
    return {one.name: one for one in found}


def rules(**matches: SecuritySettings) -> dict[str, SecuritySettings]:
    return {name.replace("_", "."): settings for name, settings in matches.items()}


ALICE, BOB, ROOT = user("alice", "apps"), user("bob"), user("root", "ops", "apps")
EVERYBODY = users(ALICE, BOB, ROOT)


def made(matches: dict[str, SecuritySettings]) -> Permissions:
    return Permissions(matches, users=lambda: EVERYBODY)


def test_without_rules_everybody_may_do_everything() -> None:
    permissions = Permissions()
    assert not permissions.is_on
    for permission in Permission:
        permissions.check("", permission, "anything")
        assert permissions.is_permitted("nobody", permission, "#")


def test_every_permission_is_told_apart() -> None:
    for own in Permission:
        permissions = made({"#": SecuritySettings(**{own.value: ("apps",)})})
        for permission in Permission:
            assert permissions.is_permitted("alice", permission, "a.b") is (permission is own)


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("orders", "orders"),
        ("orders.eu", "orders.*"),
        ("orders.eu.north", "orders.#"),
        ("news", "#"),
        ("orders.eu.special", "orders.eu.special"),
    ],
)
def test_the_most_specific_match_decides_alone(address: str, match: str) -> None:
    matches = ("#", "orders.#", "orders.*", "orders", "orders.eu.special")
    for own in matches:
        others = ("apps",)
        permissions = made(
            {each: SecuritySettings(send=() if each == own else others) for each in matches}
        )
        assert permissions.is_permitted("alice", SEND, address) is (own != match)


def test_what_a_match_leaves_out_nobody_may() -> None:
    permissions = made(
        {"#": SecuritySettings(send=("apps",)), "a": SecuritySettings(consume=("apps",))}
    )
    assert permissions.is_permitted("alice", SEND, "b")
    assert not permissions.is_permitted("alice", SEND, "a"), "nothing comes from a wider match"


def test_an_address_without_a_match_is_nobodys() -> None:
    permissions = made({"orders.#": SecuritySettings(send=("apps",))})
    with pytest.raises(NotPermitted, match="no match covers it") as caught:
        permissions.check("root", SEND, "news")
    assert caught.value.match == ""
    assert permissions.refused == 1


def test_the_error_names_user_permission_address_and_match() -> None:
    permissions = made({"orders.#": SecuritySettings()})
    with pytest.raises(NotPermitted) as caught:
        permissions.check("bob", Permission.CREATE_NON_DURABLE_QUEUE, "orders.eu")
    error = caught.value
    assert (error.user, error.permission) == ("bob", "create-non-durable-queue")
    assert (error.address, error.match) == ("orders.eu", "orders.#")
    for part in ("bob", "create-non-durable-queue", "orders.eu", "orders.#", "VSP-P110"):
        assert part in str(error)


def test_nobody_may_do_nothing_once_there_are_rules() -> None:
    permissions = made({"#": SecuritySettings(send=("apps", "anonymous"))})
    with pytest.raises(NotPermitted, match="a client without a login"):
        permissions.check("", SEND, "orders")
    assert not permissions.is_permitted("stranger", SEND, "orders")


def test_who_comes_in_without_a_login_has_the_role_anonymous() -> None:
    permissions = made({"#": SecuritySettings(send=("anonymous",))})
    assert permissions.is_permitted("anonymous", SEND, "orders")
    assert not permissions.is_permitted("alice", SEND, "orders")
    named = Permissions(
        {"#": SecuritySettings(send=("anonymous",))}, users=lambda: users(user("anonymous"))
    )
    assert named.is_permitted("anonymous", SEND, "orders"), "whatever a users file says"
    lent = Permissions(
        {"#": SecuritySettings(send=("ops",))}, users=lambda: users(user("anonymous", "ops"))
    )
    assert not lent.is_permitted("anonymous", SEND, "orders"), "it lends nothing to clients"


def test_who_comes_in_without_a_login_may_share_a_role_with_users() -> None:
    permissions = Permissions(
        {"#": SecuritySettings(send=("apps",)), "a": SecuritySettings(send=("anonymous",))},
        users=lambda: EVERYBODY,
        anonymous_role="apps",
    )
    assert permissions.is_permitted("anonymous", SEND, "b")
    assert permissions.is_permitted("alice", SEND, "b")
    assert not permissions.is_permitted("anonymous", SEND, "a"), "it has that role alone"


def test_where_parts_are_enough_a_wildcard_needs_one_match_that_permits() -> None:
    matches = {
        "news.#": SecuritySettings(consume=("apps",)),
        "news.secret": SecuritySettings(consume=("ops",)),
    }
    permissions = Permissions(matches, users=lambda: EVERYBODY, is_filtering=True)
    for wildcard in ("#", "*", "news.*", "*.secret", "news.secret.#"):
        permissions.check_subscribing("alice", CONSUME, wildcard)
        assert permissions.is_split("alice", CONSUME, wildcard)
    assert not permissions.is_split("alice", CONSUME, "news.open.#")
    for plain in ("news.secret", "other"):
        with pytest.raises(NotPermitted):
            permissions.check_subscribing("alice", CONSUME, plain)
    for wildcard in ("sports.*", "$mqtt.#"):
        with pytest.raises(NotPermitted):
            permissions.check_subscribing("alice", CONSUME, wildcard)
    with pytest.raises(NotPermitted, match="consume at any address that # covers") as refused:
        permissions.check_subscribing("bob", CONSUME, "#")
    assert "decides" not in str(refused.value)
    with pytest.raises(NotPermitted):
        permissions.check("alice", CONSUME, "news.*")
    assert permissions.refused == 6
    assert permissions.is_filtered("#")
    assert not permissions.is_filtered("news.secret")


def test_other_rules_and_other_roles_count_from_then_on() -> None:
    found = users(BOB)
    permissions = Permissions({"#": SecuritySettings(send=("apps",))}, users=lambda: found)
    assert not permissions.is_permitted("bob", SEND, "x")
    found["bob"] = user("bob", "apps")
    permissions.forget()
    assert permissions.is_permitted("bob", SEND, "x")
    permissions.replace({"#": SecuritySettings(send=("ops",))})
    assert not permissions.is_permitted("bob", SEND, "x")
    permissions.replace({})
    assert permissions.is_permitted("bob", SEND, "x")
    del found["bob"]
    permissions.replace({"#": SecuritySettings(send=("apps",))})
    assert not permissions.is_permitted("bob", SEND, "x"), "whose user is gone has no roles"


def test_a_wildcard_needs_every_match_that_may_decide() -> None:
    open_to_all = SecuritySettings(consume=("apps",))
    secret = SecuritySettings(consume=("ops",))
    permissions = made({"#": open_to_all, "news.secret": secret, "orders.#": secret})
    assert permissions.is_permitted("alice", CONSUME, "news.public")
    for wildcard in ("#", "news.*", "news.#", "*.secret", "orders.*", "*.*"):
        assert not permissions.is_permitted("alice", CONSUME, wildcard), wildcard
        assert permissions.is_permitted("root", CONSUME, wildcard), wildcard
    for wildcard in ("news.a.#", "sports.*", "news.secret.*"):
        assert permissions.is_permitted("alice", CONSUME, wildcard), wildcard


def test_a_wider_match_decides_about_nothing_of_a_covered_wildcard() -> None:
    permissions = made({"#": SecuritySettings(), "news.#": SecuritySettings(consume=("apps",))})
    assert permissions.is_permitted("alice", CONSUME, "news.*")
    assert permissions.is_permitted("alice", CONSUME, "news.#")
    assert not permissions.is_permitted("alice", CONSUME, "#")


def test_a_wildcard_beyond_all_matches_is_nobodys() -> None:
    permissions = made({"news.*": SecuritySettings(consume=("apps",))})
    assert permissions.is_permitted("alice", CONSUME, "news.*")
    assert not permissions.is_permitted("alice", CONSUME, "news.#")


def test_wildcards_that_are_no_wildcards_are_names() -> None:
    syntax = WildcardSyntax(is_routing_enabled=False)
    matches = {"#": SecuritySettings(consume=("apps",)), "news.secret": SecuritySettings()}
    permissions = Permissions(matches, syntax, lambda: EVERYBODY)
    assert permissions.is_permitted("alice", CONSUME, "news.#")


def test_many_decisions_are_forgotten_in_time() -> None:
    permissions = made({"#": SecuritySettings(send=("apps",))})
    for number in range(10_500):
        assert permissions.is_permitted("alice", SEND, f"a{number}")
    assert len(permissions._decided) <= 10_000


def test_what_queues_need() -> None:
    assert queue_permission(is_made=True, is_durable=True) is Permission.CREATE_DURABLE_QUEUE
    assert queue_permission(is_made=False, is_durable=True) is Permission.DELETE_DURABLE_QUEUE
    assert queue_permission(is_made=True, is_durable=False) is Permission.CREATE_NON_DURABLE_QUEUE
    assert queue_permission(is_made=False, is_durable=False) is Permission.DELETE_NON_DURABLE_QUEUE


def test_overlap_and_containment_are_those_of_the_names() -> None:
    """Against all names of up to four words, of an alphabet with words that no pattern has."""
    words = ("a", "b", "#", "*")
    patterns = [".".join(p) for size in (1, 2, 3) for p in itertools.product(words, repeat=size)]
    names = [".".join(n) for size in range(1, 6) for n in itertools.product("abc", repeat=size)]
    covered = {p: frozenset(n for n in names if Pattern(p).is_match(n)) for p in patterns}
    for one, other in itertools.product(patterns, repeat=2):
        both = covered[one] & covered[other]
        assert overlaps(one, other) is bool(both), (one, other)
        if contains(one, other):
            assert covered[other] <= covered[one], (one, other)
    assert contains("#", "a.#")
    assert contains("a.#", "a.*.b")
    assert not contains("a.*", "a.#")
