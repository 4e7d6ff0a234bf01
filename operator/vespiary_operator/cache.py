"""What the watches have seen: the newest known state of each Broker and of everything it has.

Owns: one entry an object, as JSON without `managedFields`, which takes less memory than
dictionaries. An entry is replaced by a newer `resourceVersion` only, whoever brings it: the
watch, a list, or the answer to a write of our own. So an event that comes late undoes nothing.
Secrets are known by name alone; what is in them is read from the API server each time.
Never: talks to the API server; decides. An entry may be older than the truth, and `cached_reader`
says what that means. Called by: `handlers` (from kopf's thread), `cached_reader`, `resync`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from vespiary_operator import kinds, names
from vespiary_operator.kinds import Kind

FORGOTTEN_AFTER_S = 300.0
"""How long it is remembered that an object is gone, so that a late event does not bring it back."""


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Metadata


class _Entry(NamedTuple):
    uid: str
    version: int
    labels: Mapping[str, str]
    data: bytes


_Place = tuple[str, str, str]


def watch_selector(kind: Kind) -> str | None:
    """Return the labels of the objects of a kind that are watched.

    Returns:
        A label selector, empty for all objects; None for a kind that is not watched.
    """
    if kind is kinds.BROKER:
        return ""
    if kind is kinds.CLAIM:
        return names.CLAIM_SELECTOR
    return names.MANAGED_SELECTOR if kind in kinds.WATCHED_CHILDREN else None


def version_of(text: object) -> int:
    """Return a resource version as a number that can be compared; 0 if it is none."""
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def requirements(selector: str) -> dict[str, str]:
    """Return the labels that a selector of equalities asks for."""
    return dict(part.split("=", 1) for part in selector.split(",") if part)


class Cache:
    """Objects by kind, namespace and name. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[_Place, _Entry] = {}
        self._instances: dict[tuple[str, str, str], set[str]] = {}
        self._gone: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._decoder = msgspec.json.Decoder()
        self._heads = msgspec.json.Decoder(_Head)

    # --- what comes in --------------------------------------------------------------------------

    def note_heard(self, kind: Kind) -> None:
        """Take that the API server said something of a kind: an event, or a whole list."""
        self._heard[kind.name] = time.monotonic()

    def put(self, kind: Kind, document: Mapping[str, Any]) -> bool:
        """Take the state of an object; return whether it is news.

        Args:
            kind: Kind of the object.
            document: The object.
        """
        metadata = document["metadata"]
        version = version_of(metadata.get("resourceVersion"))
        place = (kind.name, str(metadata.get("namespace") or ""), str(metadata["name"]))
        uid = str(metadata.get("uid", ""))
        if not self._is_newer(place, uid, version):
            return False
        labels = dict(metadata.get("labels") or {})
        return self._enter(place, _Entry(uid, version, labels, _kept(kind, document)))

    def put_raw(self, kind: Kind, raw: msgspec.Raw) -> bool:
        """Take the state of an object as JSON; return whether it is news."""
        metadata = self._heads.decode(raw).metadata
        place = (kind.name, metadata.namespace, metadata.name)
        version = version_of(metadata.resource_version)
        if not self._is_newer(place, metadata.uid, version):
            return False
        data = _kept(kind, self._decoder.decode(raw))
        entry = _Entry(metadata.uid, version, metadata.labels or {}, data)
        return self._enter(place, entry)

    def delete(self, kind: Kind, document: Mapping[str, Any]) -> bool:
        """Take that an object is gone; return whether it is news."""
        metadata = document["metadata"]
        place = (kind.name, str(metadata.get("namespace") or ""), str(metadata["name"]))
        uid = str(metadata.get("uid", ""))
        with self._lock:
            self._gone[uid] = time.monotonic()
            entry = self._entries.get(place)
            if entry is None or entry.uid != uid:
                return False
            self._remove(place, entry)
            return True

    def keep_only(
        self, kind: Kind, namespace: str, present: Iterable[tuple[str, str]], version: int
    ) -> int:
        """Drop what a list does not have any more; return how many objects.

        Args:
            kind: Kind of the list.
            namespace: Namespace of the list; empty means all.
            present: Namespaces and names that the list has.
            version: Resource version of the list; what is newer than it stays.
        """
        there = set(present)
        now = time.monotonic()
        with self._lock:
            for uid in [u for u, t in self._gone.items() if now - t > FORGOTTEN_AFTER_S]:
                del self._gone[uid]
            stale = [
                (place, entry)
                for place, entry in self._entries.items()
                if place[0] == kind.name
                and namespace in ("", place[1])
                and (place[1], place[2]) not in there
                and entry.version <= version
            ]
            for place, entry in stale:
                self._remove(place, entry)
        return len(stale)

    def _is_newer(self, place: _Place, uid: str, version: int) -> bool:
        with self._lock:
            if uid and uid in self._gone:
                return False
            entry = self._entries.get(place)
            return entry is None or version == 0 or version > entry.version

    def _enter(self, place: _Place, entry: _Entry) -> bool:
        with self._lock:
            before = self._entries.get(place)
            if entry.uid in self._gone and entry.uid:
                return False
            if before is not None:
                if 0 < entry.version <= before.version:
                    return False
                self._remove(place, before)
            self._entries[place] = entry
            instance = entry.labels.get(names.LABEL_INSTANCE, "")
            self._instances.setdefault((*place[:2], instance), set()).add(place[2])
            return True

    def _remove(self, place: _Place, entry: _Entry) -> None:
        del self._entries[place]
        index = (*place[:2], entry.labels.get(names.LABEL_INSTANCE, ""))
        members = self._instances[index]
        members.discard(place[2])
        if not members:
            del self._instances[index]

    # --- what goes out --------------------------------------------------------------------------

    def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object as it was last seen; None if it is not known."""
        entry = self._entries.get((kind.name, namespace, name))
        return None if entry is None else self._decoder.decode(entry.data)

    def items(self, kind: Kind, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects that labels select, by name.

        Args:
            kind: Kind of the objects.
            namespace: Their namespace; empty means all.
            selector: Equalities of labels.
        """
        wanted = requirements(selector)
        instance = wanted.get(names.LABEL_INSTANCE)
        with self._lock:
            if instance is not None and namespace:
                among = self._instances.get((kind.name, namespace, instance), ())
                found = [((kind.name, namespace, name)) for name in among]
            else:
                found = [
                    place
                    for place in self._entries
                    if place[0] == kind.name and namespace in ("", place[1])
                ]
            entries = [(place, self._entries[place]) for place in sorted(found)]
        return [
            self._decoder.decode(entry.data)
            for _, entry in entries
            if wanted.items() <= entry.labels.items()
        ]

    def silence_s(self, kind: Kind) -> float:
        """Return the seconds since the API server last said something of a kind; NaN if never."""
        heard = self._heard.get(kind.name)
        return math.nan if heard is None else time.monotonic() - heard

    def count(self, kind: Kind) -> int:
        """Return how many objects of a kind are known."""
        with self._lock:
            return sum(1 for place in self._entries if place[0] == kind.name)


def _kept(kind: Kind, document: Mapping[str, Any]) -> bytes:
    """Return what is kept of an object."""
    if kind is kinds.SECRET:
        return b"{}"
    metadata = dict(document["metadata"])
    metadata.pop("managedFields", None)
    # Objects in lists do not say what they are.
    whole = {**document, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
    return msgspec.json.encode(whole)
