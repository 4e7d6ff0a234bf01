"""The ConfigMaps with the configuration: what needs a restart, and what does not.

What needs a restart is in a ConfigMap that is named after its content and immutable. A pod that
restarts while a change is rolled out so still reads the settings that its own template names,
whatever the newest ones are. What a running broker can take is in another one, which changes in
place and is mounted as a folder, so that the kubelet brings changes to running pods. Beside it lies
a file for each broker that has settings of its own: a pod takes that of its number, and a change of
it concerns no other.

Never: reads the cluster. Called by: `plan`, `children`, `live_files`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from vespiary_operator import names
from vespiary_spec import changes, configuration
from vespiary_spec.resources import Broker

T = TypeVar("T")

Adoptions = Mapping[int, Mapping[str, str]]

FILE = "broker.yaml"
LIVE_FILE = "live.yaml"


def digest(text: str) -> str:
    """Return the hash of a configuration, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _once_a_spec(render: Callable[[Broker], T]) -> Callable[[Broker], T]:
    """Cache the files of the last spec, which is all that they are made from.

    A pass asks some ten times for the same files, the next pass of the same Broker asks again, and
    writing YAML is most of what a plan costs. A Broker never changes, so the same object needs no
    comparison. Specs are compared as JSON, because the order of names matters to the files.
    """
    last: tuple[Broker, bytes, T] | None = None

    @functools.wraps(render)
    def rendered(broker: Broker) -> T:
        nonlocal last
        known = last
        if known is not None and known[0] is broker:
            return known[2]
        spec = msgspec.json.encode(broker.spec)
        found = known[2] if known is not None and known[1] == spec else render(broker)
        last = (broker, spec, found)
        return found

    return rendered


@_once_a_spec
def texts(broker: Broker) -> tuple[str, str]:
    """Return what is in `broker.yaml`, and what in `live.yaml`.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    fixed, live = changes.parts(configuration.from_broker(broker))
    return configuration.dump(fixed), configuration.dump(live)


def own_file(ordinal: int | str) -> str:
    """Return the name of the file with the settings of one broker, or of a variable's."""
    return f"broker-{ordinal}.yaml"


def adoptions_file(ordinal: int | str) -> str:
    """Return the name of the file with what one broker's verification adopts."""
    return f"adopt-{ordinal}.yaml"


@_once_a_spec
def own_texts(broker: Broker) -> Mapping[int, str]:
    """Return what is in the files of brokers with settings of their own, by their number.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    own = configuration.overrides_of(broker)
    return {ordinal: configuration.dump_plain(plain) for ordinal, plain in own.items()}


def config_map(broker: Broker) -> dict[str, Any]:
    """Return the ConfigMap with what needs a restart.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    text = texts(broker)[0]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(broker, names.config_map(broker.metadata.name, digest(text))),
        "immutable": True,
        "data": {FILE: text},
    }


def live_map(broker: Broker, adoptions: Adoptions | None = None) -> dict[str, Any]:
    """Return the ConfigMap with what a running broker takes, and what its verification adopts.

    Args:
        broker: The Broker.
        adoptions: The claims that are to be adopted, by kind of data, by ordinal.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(broker, names.live_config(broker.metadata.name)),
        "data": {
            LIVE_FILE: texts(broker)[1],
            **{own_file(ordinal): text for ordinal, text in own_texts(broker).items()},
            **{
                adoptions_file(ordinal): configuration.dump_plain(claims)
                for ordinal, claims in (adoptions or {}).items()
            },
        },
    }
