"""Operations of the API on the configuration: what is in effect, and reading it again.

Owns nothing: the broker's reloading does. Called through `configuration_routes`; owner: the event
loop.
"""

from __future__ import annotations

from vespiary_broker.admin import configuration_records as records
from vespiary_broker.admin.handlers import Answer, Api, Call, shown
from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.problems import refused
from vespiary_spec.errors import ConfigError


def configuration_record(broker: Broker) -> records.Configuration:
    """Return what is in effect."""
    reloading = broker.reloading
    state, users = reloading.state, reloading.users
    return records.Configuration(
        files=tuple(
            records.ConfigurationFile(path=path, digest=digest)
            for path, digest in state.digests.items()
        ),
        loaded_at_ms=state.loaded_at_ms,
        taken=state.taken,
        failed=state.failed,
        refused=state.refused,
        waits_for_restart=state.waits_for_restart,
        kept=state.kept,
        users=records.UsersFile(path=str(users.path), digest=users.digest, refused=users.refused),
        certificates=tuple(shown(each, records.Certificate) for each in reloading.certificates()),
    )


async def show_configuration(api: Api, _: Call) -> Answer:
    """Show the configuration in effect, and what waits for a restart."""
    return Answer(configuration_record(api.broker))


async def reload_configuration(api: Api, _: Call) -> Answer:
    """Read configuration, users and certificates again; 409 if any of them was refused."""
    try:
        await api.broker.reloading.reload()
    except ConfigError as error:
        raise refused(error, 409) from error
    return Answer(configuration_record(api.broker))
