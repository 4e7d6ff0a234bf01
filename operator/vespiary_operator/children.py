"""What has to be there before pods are: the objects beside the StatefulSet, and who owns them.

Owns: which objects a Broker has beside its StatefulSet and claims, and how each is put right.
Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vespiary_operator import adoption, broker_services, integrations, kinds, names, templates
from vespiary_operator.actions import Action, Apply, Block, Create, Delete, deletion
from vespiary_operator.builders import logins, policies, services, settings_map
from vespiary_operator.drift import departure
from vespiary_operator.observation import Observed
from vespiary_spec.resources import Broker


def manifests(observed: Observed, config_map: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what has to be there before pods are."""
    broker = observed.broker
    if broker.spec.service_account.name is None:
        yield policies.service_account(broker)
    yield config_map
    yield settings_map.live_map(broker, adoption.pending(observed))
    if observed.credentials.users_file:
        yield logins.users(broker, observed.credentials.users_file)
    yield services.headless(broker)
    yield services.client(broker)
    yield from broker_services.manifests(observed)
    yield from integrations.manifests(observed)
    if broker.spec.disruption_budget.enabled:
        yield policies.disruption_budget(broker)
    if broker.spec.network_policy.enabled:
        yield policies.network_policy(broker)


def is_ours(found: Mapping[str, Any], broker: Broker) -> bool:
    """Return whether an object belongs to this very Broker."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == broker.metadata.uid for owner in owners)


def is_orphan(found: Mapping[str, Any], broker: Broker) -> bool:
    """Return whether an object of this operator lost its owner; it is taken back."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    return not metadata.get("ownerReferences") and all(
        labels.get(key) == value for key, value in names.labels(broker).items()
    )


def taken_name(observed: Observed, config_map: dict[str, Any]) -> Block | None:
    """Return what stands in the way where an object that is needed belongs to somebody else."""
    broker = observed.broker
    wanted = [(m["kind"], m["metadata"]["name"]) for m in manifests(observed, config_map)]
    wanted.append((kinds.STATEFUL_SET.name, names.stateful_set(broker.metadata.name)))
    if observed.credentials.new_password == "" and broker.spec.auth.secret_name is None:
        wanted.append((kinds.SECRET.name, names.credentials_secret(broker.metadata.name)))
    for kind, name in wanted:
        found = observed.children.get((kind, name))
        if found is None or is_ours(found, broker) or is_orphan(found, broker):
            continue
        return Block(
            reason="NameTaken",
            sentence=f"The {kind} {name} belongs to somebody else, and this Broker needs its "
            "name. Delete it, or give the Broker another name.",
        )
    return None


def supporting(observed: Observed, config_map: dict[str, Any]) -> Iterator[Action]:
    """Yield what has to be done about everything but the StatefulSet."""
    broker = observed.broker
    if observed.credentials.new_password:
        name = names.credentials_secret(broker.metadata.name)
        yield Create(
            manifest=logins.credentials(broker, observed.credentials.new_password),
            reason="CredentialsCreated",
            sentence=f"A password of `{names.ADMIN_USER}` was made; it is in the Secret {name}.",
        )
    for manifest in manifests(observed, config_map):
        action = _put_right(observed, manifest)
        if action is not None:
            yield action
    yield from broker_services.superseded(observed)
    yield from integrations.superseded(observed)
    for kind, is_wanted, field in (
        (kinds.NETWORK_POLICY, broker.spec.network_policy.enabled, "networkPolicy"),
        (kinds.POD_DISRUPTION_BUDGET, broker.spec.disruption_budget.enabled, "disruptionBudget"),
    ):
        found = observed.child(kind, names.stateful_set(broker.metadata.name))
        if found is not None and not is_wanted and is_ours(found, broker):
            yield deletion(kind, found, f"spec.{field}.enabled is false.")


def _put_right(observed: Observed, manifest: dict[str, Any]) -> Action | None:
    """Return what makes an object as wanted; None if it is."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    found = observed.children.get((kind, name))
    if found is None:
        return Apply(manifest=manifest, reason="Created", sentence=f"The {kind} {name} is made.")
    where = departure(manifest, found)
    if not where:
        return None
    if manifest.get("immutable") and where.startswith("data"):
        # It is immutable, so somebody made another one under its name; the next pass makes ours.
        return deletion(kinds.CONFIG_MAP, found, "its content is not what its name says.")
    if name == names.live_config(observed.broker.metadata.name) and where.startswith("data"):
        sentence = "The settings that need no restart change; running brokers take them."
        return Apply(manifest=manifest, reason="SettingsChanged", sentence=sentence)
    return Apply(
        manifest=manifest,
        reason="Restored",
        sentence=f"The {kind} {name} is put right: {where} was not as wanted.",
    )


def superseded(observed: Observed, current: str) -> Iterator[Delete]:
    """Yield the ConfigMaps that no pod reads any more, nor would if it were made again."""
    used = set[str]().union(*(templates.config_maps(pod) for pod in observed.pods))
    owner = observed.child(kinds.STATEFUL_SET, names.stateful_set(observed.broker.metadata.name))
    if owner is not None:
        used |= templates.config_maps(templates.live(owner))
        kept = templates.kept(owner)
        if kept is not None:
            used |= templates.config_maps(kept.template) | templates.config_maps(kept.before)
    prefix = names.config_map(observed.broker.metadata.name, "")
    for (kind, name), found in observed.children.items():
        if kind != kinds.CONFIG_MAP.name or name == current or name in used:
            continue
        if name.startswith(prefix) and is_ours(found, observed.broker):
            yield deletion(kinds.CONFIG_MAP, found, "no pod reads it any more.")
