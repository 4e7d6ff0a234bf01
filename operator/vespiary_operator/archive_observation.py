"""What one pass of a JournalArchive looks at.

Owns: the set of reads, all of them live. Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from vespiary_operator import kinds, names
from vespiary_operator.archive import ObservedArchive
from vespiary_operator.builders import archive_job as builders
from vespiary_operator.observation import Object, Reader
from vespiary_operator.pods import Pod
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Broker, JournalArchive


async def observe(cluster: Reader, archive: JournalArchive, *, now: str) -> ObservedArchive:
    """Read everything about one JournalArchive.

    Args:
        cluster: The API server.
        archive: The resource as it is now.
        now: The time, RFC 3339.

    Raises:
        ReconcileError: The API server refused or did not answer.
    """
    namespace, name = archive.metadata.namespace, archive.metadata.name
    own = names.selector(names.archive_labels(archive))
    account = names.archive_account(name)
    document, cron_job, binding, service_account, jobs, pods = await asyncio.gather(
        cluster.get(kinds.BROKER, archive.spec.broker_ref.name, namespace),
        cluster.get(kinds.CRON_JOB, names.archive_cron_job(name), namespace),
        cluster.get(kinds.ROLE_BINDING, account, namespace),
        cluster.get(kinds.SERVICE_ACCOUNT, account, namespace),
        cluster.items(kinds.JOB, namespace, own),
        cluster.items(kinds.POD, namespace, own),
    )
    broker, error = _broker(document)
    wanted = set(builders.source_claims(broker, archive.spec).values()) if broker else set()
    if archive.spec.target is not None:
        wanted.add(archive.spec.target.claim_name)
    return ObservedArchive(
        archive=archive,
        broker=broker,
        broker_error=error,
        broker_pod=await _broker_pod(cluster, archive),
        claims=await _claims(cluster, namespace, sorted(wanted)),
        cron_job=cron_job,
        account=service_account,
        role_binding=binding,
        jobs=tuple(job for job in jobs if not job["metadata"].get("deletionTimestamp")),
        pods=tuple(pods),
        now=now,
    )


def _broker(document: Object | None) -> tuple[Broker | None, str]:
    """Return the Broker, and why it cannot be read."""
    if document is None or document["metadata"].get("deletionTimestamp"):
        return None, ""
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    try:
        return Broker.from_dict({key: document[key] for key in known if key in document}), ""
    except ConfigError as error:
        return None, str(error)


async def _broker_pod(cluster: Reader, archive: JournalArchive) -> Pod | None:
    of = archive.spec.broker_ref
    name = f"metadata.name={names.pod(of.name, of.ordinal)}"
    return next(iter(await cluster.items(kinds.POD, archive.metadata.namespace, fields=name)), None)


async def _claims(cluster: Reader, namespace: str, wanted: Iterable[str]) -> dict[str, Object]:
    """Read claims by their names; a list of one each needs no further right."""
    found = await asyncio.gather(
        *(cluster.items(kinds.CLAIM, namespace, fields=f"metadata.name={name}") for name in wanted)
    )
    return {
        claim["metadata"]["name"]: claim
        for claims in found
        for claim in claims
        if not claim["metadata"].get("deletionTimestamp")
    }
