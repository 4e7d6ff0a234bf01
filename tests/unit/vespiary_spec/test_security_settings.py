"""`security-settings`: both spellings, what is refused, and that the how-to's example works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vespiary_spec.changes import differences
from vespiary_spec.configuration import dump, from_broker, from_plain
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Change, kebab
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.security import Auth, WildcardSubscriptions
from vespiary_spec.settings import Permission, SecuritySettings

PAGE = Path(__file__).resolve().parents[3] / "docs/howto/permissions.md"


def broker(**spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u-1"},
            "spec": spec,
        }
    )


def test_every_permission_is_a_setting() -> None:
    assert [each.value for each in Permission] == list(SecuritySettings.__struct_fields__)


def test_both_spellings_say_the_same() -> None:
    plain = {
        each: {kebab(permission.value): [permission.value, "other"] for permission in Permission}
        for each in ("#", "orders.*.x")
    }
    by_file = from_plain({"security-settings": plain})
    entries = [
        {"match": match, **{_camel(name): roles for name, roles in settings.items()}}
        for match, settings in plain.items()
    ]
    by_resource = from_broker(broker(securitySettings=entries))
    assert by_file.security_settings == by_resource.security_settings
    assert by_file.security_settings["#"].create_non_durable_queue == (
        "create_non_durable_queue",
        "other",
    )
    again = from_plain(yaml.safe_load(dump(by_file)))
    assert again == by_file


def _camel(name: str) -> str:
    return re.sub(r"-(.)", lambda found: found[1].upper(), name)


def test_they_are_taken_without_a_restart() -> None:
    before, after = from_plain({}), from_plain({"security-settings": {"a.b": {"send": ["x"]}}})
    (found,) = differences(before, after)
    assert (found.path, found.change) == ("security-settings.a.b", Change.RELOAD)


def test_set_takes_them() -> None:
    found = from_plain({}, ["security-settings.orders.#.send=apps, ops"])
    assert found.security_settings["orders.#"].send == ("apps", "ops")


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ("a\tb", "covers no address"),
        ("orders ", "covers no address"),
        (" orders", "covers no address"),
        ("orders*", "no wildcard inside of a word"),
        ("orders.eu#", "no wildcard inside of a word"),
        ("*x.y", "no wildcard inside of a word"),
        ("/queue/orders", "prefix of an acceptor.*Leave /queue/ out"),
        ("/topic/#", "prefix of an acceptor"),
        ("orders::eu", "names a queue"),
        ("x" * 1025, "longer than any address"),
    ],
)
def test_matches_that_cover_nothing_are_refused(match: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){words}") as caught:
        from_plain({"security-settings": {match: {"send": ["x"]}}})
    assert caught.value.path == f"security-settings.{match}"


def test_a_resource_is_told_in_its_own_spelling() -> None:
    with pytest.raises(ConfigError) as caught:
        from_broker(broker(securitySettings=[{"match": "orders*", "send": ["x"]}]))
    assert caught.value.path == "spec.securitySettings[orders*]"


def test_other_wildcards_are_looked_at() -> None:
    wildcards = {"delimiter": "/", "any-words": "+", "single-word": "*"}
    from_plain({"wildcard-addresses": wildcards, "security-settings": {"a#/*/+": {}}})
    with pytest.raises(ConfigError, match=r"between `/`"):
        from_plain({"wildcard-addresses": wildcards, "security-settings": {"a+/b": {}}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"recieve": ["x"]}, "no setting has this name"),
        ({"sends": ["x"]}, r"did you mean `send`\?"),
        ({"createAddress": ["x"]}, r"did you mean `create-address`\?"),
        ({"create-temp-queue": ["x"]}, "say `create-non-durable-queue` instead"),
        ({"view": ["x"]}, "known, but not supported yet"),
        ({"send": "x"}, "a list is expected"),
        ({"send": ["a b"]}, "not of the right form"),
        ({"send": ["a,b"]}, "not of the right form"),
        ({"send": [""]}, "not of the right form"),
        ({"send": [1]}, "no text"),
    ],
)
def test_permissions_that_are_none_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){words}") as caught:
        from_plain({"security-settings": {"orders.#": settings}})
    assert caught.value.path.startswith("security-settings.orders.#.")


def test_the_pages_example_is_taken_and_names_every_permission() -> None:
    text = PAGE.read_text()
    blocks = re.findall(r"```yaml\n(security-settings:\n.*?)```", text, re.DOTALL)
    (block,) = blocks
    found = from_plain(yaml.safe_load(block))
    assert "manage" in yaml.safe_load(block)["security-settings"]["#"]
    assert found.security_settings["orders.#"].manage == ()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(kebab(permission.value) for permission in Permission)


def test_users_of_a_resource_have_roles() -> None:
    auth = broker(auth={"users": [{"name": "alice", "roles": ["apps"]}]}).spec.auth
    assert isinstance(auth, Auth)
    assert auth.users[0].roles == ("apps",)


def test_clients_without_a_login_cannot_be_administrators() -> None:
    assert (
        from_plain({"security": {"anonymous-role": "guests"}}).security.anonymous_role == "guests"
    )
    with pytest.raises(ConfigError, match="cannot be administrators") as caught:
        from_plain({"security": {"anonymous-role": "admin"}})
    assert caught.value.path == "security.anonymous-role"


def test_a_resource_lets_clients_in_without_a_login() -> None:
    auth = {"allowAnonymous": True, "anonymousRole": "guests", "wildcardSubscriptions": "REJECT"}
    security = from_broker(broker(auth=auth)).security
    assert security.allow_anonymous
    assert security.anonymous_role == "guests"
    assert security.wildcard_subscriptions is WildcardSubscriptions.REJECT
    assert not from_broker(broker()).security.allow_anonymous
    with pytest.raises(ConfigError, match="cannot be administrators") as caught:
        from_broker(broker(auth={"anonymousRole": "admin"}))
    assert caught.value.where == "spec.auth.anonymousRole"


def test_parts_of_wildcards_are_granted_unless_that_is_rejected() -> None:
    assert from_plain({}).security.wildcard_subscriptions is WildcardSubscriptions.FILTER
    chosen = from_plain({"security": {"wildcard-subscriptions": "REJECT"}}).security
    assert chosen.wildcard_subscriptions is WildcardSubscriptions.REJECT
