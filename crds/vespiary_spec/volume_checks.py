"""What the CEL rules say about a Broker's volumes, for a file that no API server has seen.

Owns: these checks in Python; each has the words of its rule.
Never: judges a storage class or a filesystem.
Called by: `configuration.from_broker`, and so `vespiary apply` and the operator's plan.
"""

from __future__ import annotations

from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, fields_of
from vespiary_spec.object_metadata import check_metadata
from vespiary_spec.volumes import SHARED_CLAIM_TEXT, Storage, Volumes, VolumeSpec


def check_volumes(storage: Storage) -> None:
    """Check what spans several fields about a Broker's volumes.

    Raises:
        ConfigError: With the path to one of the fields.
    """
    given: dict[str, VolumeSpec] = {}
    for field in fields_of(Volumes):
        volume = getattr(storage.volumes, field.name)
        if volume is not None:
            given[field.spelled(Spelling.CAMEL)] = volume
    for name, volume in given.items():
        path = f"spec.storage.volumes.{name}"
        check_metadata(volume.metadata.labels, volume.metadata.annotations, f"{path}.metadata")
        if volume.share_with is None:
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
