"""What is particular about a queue, beyond its name, address and routing type.

Owns the list of such traits and their form in the bindings: a trait that is not there has its
default. Must never change once a queue has it: another set is put in its place. Used by `queues`,
`registry` and whoever makes queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.ports import JsonObject
from vespiary_broker.engine.queue_kinds import kind_properties_in, kind_properties_of
from vespiary_broker.engine.selection.selector import (
    Selector,
    compile_filter,
    compile_stored_filter,
)
from vespiary_spec.errors import ConfigError, InvalidSelector
from vespiary_spec.settings import Queue as ConfiguredQueue

RETIRED: Final = -1
"""Rank of a queue that takes nothing any more, and gives what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTraits:
    """The traits of a queue.

    Attributes:
        is_configured: Whether it stands in the configuration, so nothing deletes it by itself.
        max_consumers: Most consumers at a time, -1 for any number; None: the address settings say.
        is_purged_when_unused: Whether it is emptied when its last consumer goes, and takes nothing
            until the next one comes; None: the address settings say.
        auto_delete: Whether it goes by itself when it is not used any more; None: the address
            settings say.
        auto_delete_delay_ms: How long it has to be without consumers for that; None: likewise.
        auto_delete_message_count: Messages that it may hold then, -1 for any; None: likewise.
        user: Who made it, counted against that user's limit; empty for nobody. What has an owner
            (`queue_owners`) belongs to that user.
        selector: Its filter: only messages that pass it come in; None lets every message in.
        kind: What it says of its kind, by kebab-case name (`queue_kinds`).
        is_internal: Whether the broker made it for itself; nothing deletes it by itself.
        is_no_local: Whether it does not take what its own subscriber sends.
        subscriber: Who that is, if it goes with the subscription; not written down. Of a durable
            subscription it is every session with its client id.
        is_owned: Whether it belongs to its user although it has no client id.
        protocol: Whose clients alone consume from it: `mqtt`; empty: those of any protocol.
        rank: Of the queues of one client that a message could go to, that of the highest rank takes
            it, the oldest of several, and the others do not; `RETIRED`: it takes nothing any more.
            None: it takes its messages whatever the others do.
        is_filtered: Whether it takes only what `user` may consume; a queue of a wildcard address.
    """

    is_configured: bool = False
    max_consumers: int | None = None
    is_purged_when_unused: bool | None = None
    auto_delete: bool | None = None
    auto_delete_delay_ms: int | None = None
    auto_delete_message_count: int | None = None
    user: str = ""
    kind: tuple[tuple[str, Any], ...] = ()
    selector: Selector | None = None
    is_internal: bool = False
    is_no_local: bool = False
    subscriber: Sender | None = None
    is_owned: bool = False
    protocol: str = ""
    rank: int | None = None
    is_filtered: bool = False

    @property
    def filter_string(self) -> str:
        """The text of its filter; empty for none."""
        return "" if self.selector is None else self.selector.text

    @property
    def _auto_deletion(self) -> tuple[tuple[str, int | None], ...]:
        return (
            ("auto-delete", self.auto_delete),
            ("auto-delete-delay", self.auto_delete_delay_ms),
            ("auto-delete-message-count", self.auto_delete_message_count),
        )

    def to_binding(self) -> JsonObject:
        """Return what goes into the value of its queue in the bindings."""
        value: JsonObject = {}
        if self.is_configured:
            value["configured"] = True
        if self.max_consumers is not None:
            value["max-consumers"] = self.max_consumers
        if self.is_purged_when_unused is not None:
            value["purge-on-no-consumers"] = self.is_purged_when_unused
        for key, own in self._auto_deletion:
            if own is not None:
                value[key] = own
        if self.user:
            value["user"] = self.user
        if self.selector is not None:
            value["filter-string"] = self.selector.text
        if self.is_internal:
            value["internal"] = True
        if self.is_no_local:
            value["no-local"] = True
        if self.is_owned:
            value["owned"] = True
        if self.protocol:
            value["protocol"] = self.protocol
        if self.rank is not None:
            value["rank"] = self.rank
        if self.is_filtered:
            value["permitted-only"] = True
        value.update(self.kind)
        return value

    def owned_as(self, before: QueueTraits) -> QueueTraits:
        """Return these traits for a queue that is whose it was before.

        Args:
            before: What it has.
        """
        return replace(self, user=before.user, is_owned=before.is_owned, protocol=before.protocol)

    @classmethod
    def from_binding(cls, value: JsonObject) -> QueueTraits:
        """Return the traits that the value of a queue in the bindings has.

        Raises:
            InvalidSelector: Its filter is none.
        """
        traits = cls(
            is_configured=bool(value.get("configured", False)),
            max_consumers=value.get("max-consumers"),
            is_purged_when_unused=value.get("purge-on-no-consumers"),
            auto_delete=value.get("auto-delete"),
            auto_delete_delay_ms=value.get("auto-delete-delay"),
            auto_delete_message_count=value.get("auto-delete-message-count"),
            user=value.get("user", ""),
            selector=compile_stored_filter(value.get("filter-string", "")),
            kind=kind_properties_in(value),
            is_internal=bool(value.get("internal", False)),
            is_no_local=bool(value.get("no-local", False)),
            is_owned=bool(value.get("owned", False)),
            protocol=str(value.get("protocol", "")),
            rank=value.get("rank"),
            is_filtered=bool(value.get("permitted-only", False)),
        )
        if traits == QueueTraits(user=traits.user):
            return traits_of_user(traits.user)
        return traits


def configured_traits(queue: ConfiguredQueue, address: str) -> QueueTraits:
    """Return the traits of a queue of the configuration.

    Args:
        queue: The queue.
        address: Name of its address, for the message.

    Raises:
        ConfigError: Its filter is none.
    """
    try:
        selector = compile_filter(queue.filter_string)
    except InvalidSelector as error:
        raise ConfigError(
            f"the filter of the queue {queue.name} of the address {address} is not a "
            f"valid selector: {error}",
            path="filter-string",
            value=queue.filter_string,
        ) from error
    return QueueTraits(
        is_configured=True,
        max_consumers=queue.max_consumers,
        is_purged_when_unused=queue.purge_on_no_consumers,
        kind=kind_properties_of(queue),
        selector=selector,
    )


@lru_cache(maxsize=1024)
def traits_of_user(user: str) -> QueueTraits:
    """Return the traits of a queue that has a user and nothing particular; one object for all."""
    return QueueTraits(user=user)


NO_TRAITS: Final = traits_of_user("")
"""The traits of a queue that has nothing particular."""
