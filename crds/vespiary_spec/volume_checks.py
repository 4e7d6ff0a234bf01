"""What the CEL rules say about a Broker's volumes, for a file that no API server has seen.

Owns: these checks in Python; each has the words of its rule.
Never: judges a storage class or a filesystem.
Called by: `configuration.from_broker`, and so `vespiary apply` and the operator's plan.
"""

from __future__ import annotations

from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, fields_of
from vespiary_spec.object_metadata import check_metadata
from vespiary_spec.units import format_quantity
from vespiary_spec.volumes import (
    BELOW_SIZE_TEXT,
    DEFAULT_VOLUME_BYTES,
    SHARED_CLAIM_TEXT,
    Storage,
    Volumes,
    VolumeSpec,
)


def check_volumes(storage: Storage) -> None:
    """Check what spans several fields about a Broker's volumes.

    Raises:
        ConfigError: With the path to one of the fields.
    """
    given: dict[str, VolumeSpec] = {}
    defaults: dict[str, int] = {}
    for field in fields_of(Volumes):
        volume = getattr(storage.volumes, field.name)
        if volume is not None:
            given[field.spelled(Spelling.CAMEL)] = volume
            defaults[field.spelled(Spelling.CAMEL)] = DEFAULT_VOLUME_BYTES[field.name]
    for name, volume in given.items():
        path = f"spec.storage.volumes.{name}"
        check_metadata(volume.metadata.labels, volume.metadata.annotations, f"{path}.metadata")
        if volume.share_with is None:
            size = defaults[name] if volume.size is None else volume.size
            if volume.auto_grow is not None and volume.auto_grow.max_size < size:
                raise ConfigError(
                    f"{BELOW_SIZE_TEXT} {name}",
                    path=f"{path}.autoGrow.maxSize",
                    value=format_quantity(volume.auto_grow.max_size),
                    cure=f"give it {format_quantity(size)} or more",
                )
            continue
        if volume != VolumeSpec(share_with=volume.share_with):
            raise ConfigError(SHARED_CLAIM_TEXT, path=path)
        target = given[volume.share_with.value]
        if target.share_with is not None:
            raise ConfigError(
                f"a volume shares the claim of {volume.share_with.value}, which has none of its "
                "own",
                path=f"{path}.shareWith",
                value=volume.share_with.value,
                cure="share with a volume that has a claim",
            )
