"""Settings that one broker of a Broker has otherwise than the rest: `spec.perBroker`.

Owns: which settings these may be, and how they are laid over those of all.
Never: says how a pod finds its own (that is the operator) or when a broker takes them (`changes`).
Called by: `resources`, `configuration`, the operator, `vespiary apply`.

All pods of a StatefulSet have one template, so what stands in a template (resources, nodes,
volumes, and what the journal's engine asks of a node) is the same for all of them and is refused
here by name (`refusals`).
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec

from vespiary_spec.model import kebab, setting
from vespiary_spec.refusals import NOT_YET
from vespiary_spec.scheduling import Part
from vespiary_spec.settings import BrokerSettings

ORDINAL_MAX = 99
"""The highest number of a broker: there are at most a hundred."""


def _nullable(hint: Any) -> Any:
    """Return the type of a setting with its bounds, and None for "as all brokers have it"."""
    (meta,) = hint.__metadata__
    facts = dataclasses.replace(meta.extra["facts"], default_text="as in `spec.config`")
    own = msgspec.Meta(description=meta.description, extra={"facts": facts})
    return Annotated[hint.__origin__ | None, own]


if TYPE_CHECKING:

    class BrokerOverrides(Part, frozen=True):
        """The settings of one broker; None is what all brokers have."""

else:
    BrokerOverrides = msgspec.defstruct(
        "BrokerOverrides",
        [
            (name, _nullable(hint), None)
            for name, hint in get_type_hints(BrokerSettings, include_extras=True).items()
            if kebab(name) not in NOT_YET["BrokerOverrides"]
            and hint.__metadata__[0].extra["facts"].is_in_resource
        ],
        bases=(Part,),
        namespace={"__doc__": "The settings of one broker; None is what all brokers have."},
        module=__name__,
        frozen=True,
        kw_only=True,
        rename="camel",
        omit_defaults=True,
    )


class PerBroker(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one broker has otherwise than the rest."""

    ordinal: Annotated[
        int,
        setting(
            "Number of the broker, which its pod's name ends in. One that does not exist yet has "
            "it from its start.",
            minimum=0,
            maximum=ORDINAL_MAX,
        ),
    ]
    config: Annotated[BrokerOverrides, setting("Settings that win over `spec.config`.")]
