"""Weak hashes of the users file become strong ones at a login, or stay and are mentioned."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from scramp import ScramClient

from vespiary_broker.app import user_changes
from vespiary_broker.app.rehashing import Rehashing
from vespiary_broker.app.user_changes import add_user, read_users, remove_user, replace_hash
from vespiary_broker.app.users_file import UsersFile
from vespiary_broker.engine import users as engine_users
from vespiary_broker.engine.logins import Check, Logins, Principal
from vespiary_broker.engine.mechanisms import Challenge, Mechanisms, Welcome
from vespiary_broker.engine.users import format_users, make_user, parse_users
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_testkit.journal_workload import run


class World:
    """A users file with one weak hash, and what checks passwords by it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "users"
        self.path.write_text(
            "# my comment\n"
            + format_users([make_user("alice", "right", roles=["r"], iterations=4096)])
        )
        self.path.chmod(0o600)
        self.file = UsersFile(self.path)
        self.logins = Logins(self.file.users)
        self.checks = PasswordChecks(self.logins)
        self.tasks: list[asyncio.Task[None]] = []
        rehashing = Rehashing(
            self.path,
            self.logins,
            self.checks,
            lambda work: self.tasks.append(asyncio.get_running_loop().create_task(work)),
        )
        self.checks.on_outdated = rehashing.begin

    async def log_in(self) -> Principal:
        found = self.logins.begin("alice", "right", "10.0.0.1", 0.0)
        if isinstance(found, Check):
            is_good = await self.checks.is_good(found)
            found = self.logins.finish(found, is_good=is_good, now_s=0.0)
        await asyncio.gather(*self.tasks)
        return found

    @property
    def iterations(self) -> int:
        return read_users(self.path)["alice"].iterations


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(engine_users, "DEFAULT_ITERATIONS", 5000)
    monkeypatch.setattr(engine_users.make_user, "__kwdefaults__", {"roles": (), "iterations": 5000})
    return World(tmp_path)


@run
async def test_a_weak_hash_is_replaced_at_a_login(world: World) -> None:
    assert (await world.log_in()).name == "alice"
    assert world.iterations == 5000
    alice = read_users(world.path)["alice"]
    assert alice.is_password("right")
    assert alice.roles == {"r"}
    assert world.path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in world.path.parent.iterdir()] == ["users"]
    await world.log_in()
    assert world.checks.begun == 2, "one to check, one to make the new one; none afterwards"


@run
async def test_scram_that_began_with_the_old_hash_ends_well(world: World) -> None:
    client = ScramClient(["SCRAM-SHA-256"], "alice", "right")
    exchange = Mechanisms(world.logins).begin("SCRAM-SHA-256", "10.0.0.2")
    challenge = exchange.respond(client.get_client_first().encode(), 0.0)
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    await world.log_in()
    assert world.iterations == 5000
    assert isinstance(exchange.respond(client.get_client_final().encode(), 0.0), Welcome)
    with_new = ScramClient(["SCRAM-SHA-256"], "alice", "right")
    exchange = Mechanisms(world.logins).begin("SCRAM-SHA-256", "10.0.0.2")
    challenge = exchange.respond(with_new.get_client_first().encode(), 0.0)
    assert isinstance(challenge, Challenge)
    assert "i=5000" in challenge.data.decode()


@run
async def test_a_users_file_that_cannot_be_written_is_mentioned_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    target = world.path.rename(world.path.with_name("..data"))
    world.path.symlink_to(target)  # as a Secret is mounted
    before = target.read_text()
    with caplog.at_level(logging.WARNING):
        await world.log_in()
        world.logins._remembered.clear()
        await world.log_in()
    assert target.read_text() == before
    assert world.path.is_symlink()
    assert caplog.text.count("keep their weaker hashes") == 1
    assert (await world.log_in()).name == "alice"


@run
async def test_a_user_who_was_changed_meanwhile_is_left_alone(world: World) -> None:
    old = read_users(world.path)["alice"]
    world.path.write_text(format_users([make_user("alice", "new", iterations=4096)]))
    before = world.path.read_text()
    assert not replace_hash(world.path, old, make_user("alice", "right"))
    assert world.path.read_text() == before
    remove_user(world.path, "alice")
    assert not replace_hash(world.path, old, make_user("alice", "right"))
    assert read_users(world.path) == {}


@pytest.mark.parametrize("text", ["", format_users([make_user("bob", "x", iterations=4096)])])
def test_an_editor_that_takes_no_lock_has_the_last_word(
    world: World, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A user who is removed while its hash is replaced does not come back."""
    old, fsync, written = read_users(world.path)["alice"], os.fsync, []

    def edit_meanwhile(descriptor: int) -> None:
        fsync(descriptor)
        if not written:
            written.append(world.path.with_name("edited"))
            written[0].write_text(text)
            written[0].replace(world.path)

    monkeypatch.setattr(user_changes.os, "fsync", edit_meanwhile)
    new = make_user("alice", "right", iterations=5000)
    assert not replace_hash(world.path, old, new)
    assert written
    assert world.path.read_text() == text
    assert [each.name for each in world.path.parent.iterdir()] == ["users"]
    written.clear()
    add_user(world.path, "carol", "long-enough")
    assert list(read_users(world.path)) == [*parse_users(text, ""), "carol"]


def test_what_people_wrote_into_the_file_stays(world: World) -> None:
    old = read_users(world.path)["alice"]
    text = f"# ours\n\n  {old.verifier.join(['alice  ', '   r'])}  # the shop\n"
    world.path.write_text(text)
    new = make_user("alice", "right", iterations=5000)
    assert replace_hash(world.path, old, new)
    assert world.path.read_text() == text.replace(old.verifier, new.verifier)
    assert read_users(world.path)["alice"].roles == {"r"}
