"""From what was observed to what is done about it, and why: no more than a function.

Owns: which objects a Broker has, in which order they are made, and when nothing may be done.
Never: reads the cluster, the clock or randomness; decides about the status (that is `status`).
Called by: `reconciler`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vespiary_operator import kinds, names, rollout, storage_checks
from vespiary_operator.builders import logins, policies, services, settings_map, statefulset
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.drift import difference, quantity
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import Observed
from vespiary_operator.options import Options
from vespiary_operator.rollout import Rollout
from vespiary_operator.storage_checks import Declared
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Broker


@dataclass(frozen=True, kw_only=True, slots=True)
class Apply:
    """Make an object as the manifest says, by server-side apply.

    Attributes:
        manifest: The object.
        reason: One word for the Event: Created, Restored, Changed, RollingUpdate, Growing.
        sentence: Why.
    """

    manifest: dict[str, Any]
    reason: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """Make an object that must not be written if it is there already."""

    manifest: dict[str, Any]
    reason: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delete:
    """Delete one object, and no other that has taken its name since."""

    kind: Kind
    name: str
    namespace: str
    uid: str
    reason: str
    sentence: str


Action = Apply | Create | Delete


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Why nothing, or no pod, is made.

    Attributes:
        reason: One word for the conditions.
        sentence: For people: what, where, and what to do.
        is_storage: Whether a volume is to blame.
    """

    reason: str
    sentence: str
    is_storage: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is done, and why.

    Attributes:
        actions: In this order.
        reason: One sentence.
        image: Image of the pods.
        block: Why pods are not made or changed; None if nothing stands in the way.
        rollout: Where a change of the pods stands; None without a StatefulSet.
        declared: What storage classes and PersistentVolumes say.
        warnings: Sentences about what is not done as asked, such as a claim made smaller.
    """

    actions: tuple[Action, ...]
    reason: str
    image: str
    block: Block | None = None
    rollout: Rollout | None = None
    declared: tuple[Declared, ...] = ()
    warnings: tuple[str, ...] = ()


def image_of(broker: Broker, options: Options, stateful_set: Mapping[str, Any] | None) -> str:
    """Return the image of a Broker's pods.

    What the user says wins. A Broker that says nothing keeps what it has got, so that a new
    operator restarts nobody.

    Args:
        broker: The Broker.
        options: Has the default image.
        stateful_set: The live one, in case the status was lost.
    """
    if broker.spec.image:
        return broker.spec.image
    repository = options.broker_image.partition("@")[0]
    last = repository.rpartition("/")[2]
    if ":" in last:
        repository = repository.rpartition(":")[0]
    if broker.spec.version:
        return f"{repository}:{broker.spec.version}"
    if broker.status.image:
        return broker.status.image
    template = ((stateful_set or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    kept = next((c.get("image") for c in containers if c["name"] == names.BROKER_CONTAINER), None)
    return str(kept or options.broker_image)


def plan(observed: Observed, options: Options) -> Plan:
    """Decide what to do about a Broker.

    Args:
        observed: What was found.
        options: Images and the like.

    Returns:
        The same plan for the same input, always. When everything is as wanted, it has no actions.
    """
    found = _plan(observed, options)
    if observed.broker.spec.paused:
        return dataclasses.replace(found, actions=(), reason="Paused, as spec.paused asks.")
    return found


def _plan(observed: Observed, options: Options) -> Plan:
    """Decide as if nothing were paused."""
    broker = observed.broker
    live = observed.child(kinds.STATEFUL_SET, names.stateful_set(broker.metadata.name))
    image = image_of(broker, options, live)
    declared = storage_checks.declared(broker, classes=observed.classes, volumes=observed.volumes)
    try:
        config_map = settings_map.config_map(broker)
    except ConfigError as error:
        wrong = Block(reason="InvalidConfiguration", sentence=str(error))
        return Plan(actions=(), reason=wrong.sentence, image=image, block=wrong, declared=declared)
    block = _block(observed, declared, config_map)
    if block is not None and block.reason in ("NameTaken", "SecretUnusable"):
        return Plan(actions=(), reason=block.sentence, image=image, block=block, declared=declared)

    actions = [*_supporting(observed, config_map)]
    if block is not None:
        return Plan(
            actions=tuple(actions),
            reason=block.sentence,
            image=image,
            block=block,
            declared=declared,
        )
    growth, warnings = _growth(observed)
    actions += growth
    step, change = _stateful_set(observed, options, image, config_map["metadata"]["name"], live)
    actions += change
    if step is not None and step.is_complete and not change:
        actions += _superseded(observed, config_map["metadata"]["name"])
    reason = step.reason if step is not None else "The StatefulSet is made."
    if actions and (step is None or step.is_complete):
        reason = actions[-1].sentence
    return Plan(
        actions=tuple(actions),
        reason=reason,
        image=image,
        rollout=step,
        declared=declared,
        warnings=tuple(warnings),
    )


def _manifests(observed: Observed, config_map: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what has to be there before pods are."""
    broker = observed.broker
    yield policies.service_account(broker)
    yield config_map
    if observed.credentials.users_file:
        yield logins.users(broker, observed.credentials.users_file)
    yield services.headless(broker)
    yield services.client(broker)
    yield policies.disruption_budget(broker)
    if broker.spec.network_policy.enabled:
        yield policies.network_policy(broker)


def _is_ours(found: Mapping[str, Any], broker: Broker) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == broker.metadata.uid for owner in owners)


def _block(
    observed: Observed, declared: tuple[Declared, ...], config_map: dict[str, Any]
) -> Block | None:
    """Return what stands in the way of pods, the worst first."""
    broker = observed.broker
    wanted = [(m["kind"], m["metadata"]["name"]) for m in _manifests(observed, config_map)]
    wanted.append((kinds.STATEFUL_SET.name, names.stateful_set(broker.metadata.name)))
    if observed.credentials.new_password == "" and broker.spec.auth.secret_name is None:
        wanted.append((kinds.SECRET.name, names.credentials_secret(broker.metadata.name)))
    for kind, name in wanted:
        found = observed.children.get((kind, name))
        if found is None or _is_ours(found, broker) or _is_orphan(found, broker):
            continue
        return Block(
            reason="NameTaken",
            sentence=f"The {kind} {name} belongs to somebody else, and this Broker needs its "
            "name. Delete it, or give the Broker another name.",
        )
    if observed.credentials.problem:
        return Block(reason="SecretUnusable", sentence=observed.credentials.problem)
    refused = next((item for item in declared if item.verdict.is_denied), None)
    if refused is not None and broker.spec.replicas > 0:
        return Block(reason="VolumeRefused", sentence=refused.verdict.sentence, is_storage=True)
    return None


def _is_orphan(found: Mapping[str, Any], broker: Broker) -> bool:
    """Return whether an object of this operator lost its owner; it is taken back."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    return not metadata.get("ownerReferences") and all(
        labels.get(key) == value for key, value in names.labels(broker).items()
    )


def _supporting(observed: Observed, config_map: dict[str, Any]) -> Iterator[Action]:
    """Yield what has to be done about everything but the StatefulSet."""
    broker = observed.broker
    if observed.credentials.new_password:
        name = names.credentials_secret(broker.metadata.name)
        yield Create(
            manifest=logins.credentials(broker, observed.credentials.new_password),
            reason="CredentialsCreated",
            sentence=f"A password of `{names.ADMIN_USER}` was made; it is in the Secret {name}.",
        )
    for manifest in _manifests(observed, config_map):
        action = _put_right(observed, manifest)
        if action is not None:
            yield action
    policy = observed.child(kinds.NETWORK_POLICY, names.stateful_set(broker.metadata.name))
    if policy is not None and not broker.spec.network_policy.enabled and _is_ours(policy, broker):
        yield _delete(kinds.NETWORK_POLICY, policy, "spec.networkPolicy.enabled is false.")


def _put_right(observed: Observed, manifest: dict[str, Any]) -> Action | None:
    """Return what makes an object as wanted; None if it is."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    found = observed.children.get((kind, name))
    if found is None:
        return Apply(manifest=manifest, reason="Created", sentence=f"The {kind} {name} is made.")
    where = difference(manifest, found)
    if not where:
        return None
    if kind == kinds.CONFIG_MAP.name and where.startswith("data"):
        # It is immutable, so somebody made another one under its name; the next pass makes ours.
        return _delete(kinds.CONFIG_MAP, found, "its content is not what its name says.")
    return Apply(
        manifest=manifest,
        reason="Restored",
        sentence=f"The {kind} {name} is put right: {where} was not as wanted.",
    )


def _delete(kind: Kind, found: Mapping[str, Any], why: str) -> Delete:
    metadata = found["metadata"]
    return Delete(
        kind=kind,
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        reason="Deleted",
        sentence=f"The {kind.name} {metadata['name']} is deleted: {why}",
    )


def _superseded(observed: Observed, current: str) -> Iterator[Delete]:
    """Yield the ConfigMaps that no pod reads any more."""
    used = {
        volume["configMap"]["name"]
        for pod in observed.pods
        for volume in (pod.get("spec") or {}).get("volumes") or ()
        if volume.get("configMap")
    }
    prefix = names.config_map(observed.broker.metadata.name, "")
    for (kind, name), found in observed.children.items():
        if kind != kinds.CONFIG_MAP.name or name == current or name in used:
            continue
        if name.startswith(prefix) and _is_ours(found, observed.broker):
            yield _delete(kinds.CONFIG_MAP, found, "no pod reads it any more.")


def _growth(observed: Observed) -> tuple[list[Action], list[str]]:
    """Return the claims to make larger, and what is asked for but can't be done."""
    broker = observed.broker
    actions: list[Action] = []
    warnings: list[str] = []
    if broker.spec.storage.ephemeral:
        return actions, warnings
    for volume in volumes_of(broker):
        wanted = statefulset.volume_bytes(broker, volume)
        for ordinal in range(broker.spec.replicas):
            name = names.claim(broker.metadata.name, volume, ordinal)
            claim = observed.claims.get(name)
            if claim is None:
                continue
            requests = (claim["spec"].get("resources") or {}).get("requests") or {}
            has = int(quantity(requests.get("storage", 0)) or 0)
            if wanted == has:
                continue
            if wanted < has:
                warnings.append(
                    f"The claim {name} has {has} bytes and cannot be made smaller; the Broker "
                    f"asks for {wanted}."
                )
                continue
            storage = (observed.classes or {}).get(claim["spec"].get("storageClassName") or "")
            if storage is not None and not storage.get("allowVolumeExpansion"):
                warnings.append(
                    f"The claim {name} cannot grow from {has} to {wanted} bytes: its storage class "
                    f"{storage['metadata']['name']} does not allow it."
                )
                continue
            actions.append(
                Apply(
                    manifest=statefulset.grown_claim(broker, volume, name),
                    reason="Growing",
                    sentence=f"The claim {name} grows from {has} to {wanted} bytes.",
                )
            )
    return actions, warnings


def _stateful_set(
    observed: Observed,
    options: Options,
    image: str,
    config_map: str,
    live: Mapping[str, Any] | None,
) -> tuple[Rollout | None, list[Action]]:
    """Return where the pods' change stands, and what is done about the StatefulSet."""
    broker = observed.broker
    replicas = broker.spec.replicas
    pull_policy = (
        broker.spec.image_pull_policy.value
        if broker.spec.image_pull_policy is not None
        else options.broker_pull_policy
    )

    def wanted(partition: int) -> dict[str, Any]:
        templates = None
        if live is not None:
            templates = _kept_templates(live)
        return statefulset.stateful_set(
            broker,
            image=image,
            pull_policy=pull_policy,
            config_map=config_map,
            partition=partition,
            claim_templates=templates,
        )

    name = names.stateful_set(broker.metadata.name)
    if live is None:
        return None, [
            Apply(
                manifest=wanted(replicas),
                reason="Created",
                sentence=f"The StatefulSet {name} is made with {replicas} "
                f"{'broker' if replicas == 1 else 'brokers'}.",
            )
        ]
    template = wanted(replicas)["spec"]["template"]
    where = difference(template, (live.get("spec") or {}).get("template"), "spec.template")
    if where:
        return (
            Rollout(replicas, False, f"The pods' template changes ({where})."),
            [
                Apply(
                    manifest=wanted(replicas),
                    reason="TemplateChanged",
                    sentence=f"The pods' template changes ({where}); one broker after the other "
                    "gets it.",
                )
            ],
        )
    running = [pod for pod in observed.pods if _belongs(pod, live)]
    step = rollout.next_step(live, running, replicas=replicas)
    manifest = wanted(step.partition)
    where = difference(manifest, live)
    if not where:
        return step, []
    is_gate = where.endswith("rollingUpdate.partition")
    sentence = step.reason if is_gate else f"The StatefulSet {name} is put right: {where}."
    if where == "spec.replicas":
        has = (live.get("spec") or {}).get("replicas")
        sentence = f"The StatefulSet {name} goes from {has} to {replicas} brokers."
    reason = "Restored"
    if is_gate:
        reason = "RollingUpdate" if step.restarts else "Gate"
    elif where == "spec.replicas":
        reason = "Scaled"
    return step, [Apply(manifest=manifest, reason=reason, sentence=sentence)]


def _belongs(pod: Mapping[str, Any], stateful_set: Mapping[str, Any]) -> bool:
    uid = stateful_set["metadata"].get("uid")
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _kept_templates(live: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the live claim templates as they can be applied again: they cannot be changed."""
    kept = []
    for template in (live.get("spec") or {}).get("volumeClaimTemplates") or ():
        part = copy.deepcopy(dict(template))
        part.pop("status", None)
        part["metadata"] = {
            key: value
            for key, value in part["metadata"].items()
            if key in ("name", "labels", "annotations")
        }
        kept.append(part)
    return kept


def described(action: Action) -> str:
    """Return an action in short, for the log: verb, kind and name."""
    if isinstance(action, Delete):
        return f"delete {action.kind.name}/{action.name}"
    verb = "create" if isinstance(action, Create) else "apply"
    return f"{verb} {action.manifest['kind']}/{action.manifest['metadata']['name']}"
