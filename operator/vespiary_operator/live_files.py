"""Files that running brokers take without a restart: whether they have, and how they get them soon.

Owns: the condition ConfigApplied, and the annotation that makes a kubelet bring mounted files up to
date at once. Files reach a pod through its mounts alone, so a broker takes them with the operator
gone, too; and a pod that starts in between reads the newest ones.
Never: reads the cluster. Called by: `plan`, `status`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from vespiary_operator import admin_ports, adoption, certificates, kinds, maintenance, names, pods
from vespiary_operator.actions import Action, Apply, Block
from vespiary_operator.builders import settings_map
from vespiary_operator.builders.pod_template import LIVE_PATH, own_path
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding
from vespiary_operator.observation import ConfigurationAnswer, Observed
from vespiary_operator.pods import Pod
from vespiary_operator.rollout import Rollout
from vespiary_spec import changes, configuration
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling
from vespiary_spec.settings import Configuration

_NAMED_MAX = 5
"""Settings that a sentence names; of more, the number."""


def nudges(observed: Observed) -> Iterator[Action]:
    """Yield what makes kubelets bring files that running brokers have yet to take.

    Only once what is mounted is as wanted: the kubelet reads it when the annotation changes.
    """
    broker = observed.broker
    live = observed.child(kinds.CONFIG_MAP, names.live_config(broker.metadata.name))
    if (
        live is None
        or live.get("data") != settings_map.live_map(broker, adoption.pending(observed))["data"]
    ):
        return
    digest = _mounted_digest(observed)
    for pod in observed.pods:
        answer = observed.answers.get(pods.name(pod))
        if answer is None or answer.configuration is None or pods.is_terminating(pod):
            continue
        told = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_MOUNTED)
        if told == digest or not missing(observed, answer.configuration, pods.ordinal(pod)):
            continue
        yield Apply(
            manifest={
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pods.name(pod),
                    "namespace": broker.metadata.namespace,
                    "uid": pod["metadata"].get("uid"),
                    "annotations": {names.ANNOTATION_MOUNTED: digest},
                },
            },
            reason="FilesChanged",
            sentence=f"{pods.name(pod)} has yet to take changed files; its kubelet is told.",
        )


def _mounted_digest(observed: Observed) -> str:
    """Return the digest of all that running pods have mounted and may change."""
    parts = [
        str(settings_map.live_map(observed.broker, adoption.pending(observed))["data"]),
        observed.credentials.users_file,
    ]
    parts += [found.fingerprint for _, found in certificates.found_by_acceptor(observed).values()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def missing(observed: Observed, told: ConfigurationAnswer, ordinal: int) -> str:
    """Return which file a broker has yet to take; empty if it has taken all.

    Args:
        observed: What was found.
        told: What the broker says.
        ordinal: Number of the broker.
    """
    wanted = settings_map.digest(settings_map.texts(observed.broker)[1])
    if told.digests.get(LIVE_PATH) != wanted:
        return "settings"
    own = settings_map.own_texts(observed.broker).get(ordinal)
    if told.digests.get(own_path(ordinal), "") != ("" if own is None else settings_map.digest(own)):
        return "settings of its own"
    users = hashlib.sha256(observed.credentials.users_file.encode()).hexdigest()
    if observed.credentials.users_file and told.users_digest != users:
        return "users"
    for acceptor, (_, found) in certificates.found_by_acceptor(observed).items():
        if found.fingerprint and told.certificates.get(acceptor) != found.fingerprint:
            return f"certificate of {acceptor}"
    return ""


def is_behind(observed: Observed) -> bool:
    """Return whether a running broker says that it has yet to take a file."""
    try:
        for pod in observed.pods:
            answer = observed.answers.get(pods.name(pod))
            if answer is None or answer.configuration is None:
                continue
            told = answer.configuration
            if told.waits_for_restart or missing(observed, told, pods.ordinal(pod)):
                return True
    except ConfigError:
        pass  # what is asked for cannot be taken by anybody, which `plan` says
    return False


def waiting(observed: Observed, pod: Pod) -> str:
    """Return the settings that wait for a broker's next start, for a sentence; empty if none do.

    A broker that has yet to take its newest files does not count: what it waits for may be old.

    Args:
        observed: What was found.
        pod: Its pod.
    """
    answer = observed.answers.get(pods.name(pod))
    if answer is None or answer.configuration is None:
        return ""
    found = answer.configuration.waits_for_restart
    if not found or missing(observed, answer.configuration, pods.ordinal(pod)):
        return ""
    return _named(found)


def applied(
    observed: Observed, block: Block | None, rollout: Rollout | None, *, is_complete: bool
) -> Finding:
    """Return the condition ConfigApplied: True when every broker reports what it should.

    Args:
        observed: What was found.
        block: What stands in the way of a plan.
        rollout: Where a change of the pods stands.
        is_complete: Whether every pod has the newest template.
    """
    if block is not None:
        return FALSE, block.reason, block.sentence
    if not is_complete:
        if rollout is None or rollout.is_complete:
            return UNKNOWN, "NotStarted", "The brokers have yet to be made."
        waits = _waiting_settings(observed)
        return FALSE, "RollingOut", f"{rollout.reason}{waits}"
    for pod in observed.pods:
        finding = _taken(observed, pod)
        if finding is not None:
            return finding
    return TRUE, "Applied", "All brokers run with the current settings."


def _taken(observed: Observed, pod: Pod) -> Finding | None:
    """Return why a broker is not known to run with the current settings; None if it is."""
    name = pods.name(pod)
    if not pods.is_ready(pod):
        return FALSE, "Starting", f"{name} has yet to say what it runs with. {pods.waits_for(pod)}"
    answer = observed.answers.get(name)
    if answer is None and not observed.credentials.admin_password:
        where = observed.broker.spec.auth.secret_name
        return (
            UNKNOWN,
            "NotReported",
            f"Brokers cannot be asked what they run with: the Secret {where} has no user "
            f"`{names.ADMIN_USER}`. Changes reach them within about a minute all the same.",
        )
    if answer is None or answer.configuration is None:
        secret = "" if answer is not None else admin_ports.tls_secret(pod)
        said = (
            f" It is asked only if its HTTP port shows a certificate that belongs to the Secret "
            f"{secret}; a changed one reaches it within about a minute."
        )
        sentence = f"{name} does not say what it runs with.{said if secret else ''}"
        return UNKNOWN, "NotReported", sentence
    told = answer.configuration
    refused = told.refused or told.users_refused
    what = missing(observed, told, pods.ordinal(pod))
    if what == "settings of its own" and own_path(pods.ordinal(pod)) not in told.digests:
        return (
            FALSE,
            "Unsupported",
            f"{name} runs a version, or has a template of before, that takes no settings of its "
            "own, which spec.perBroker has for it. Upgrade it, or take them out.",
        )
    if refused and what:
        return (
            FALSE,
            "Refused",
            f"{name} refuses the new {what} and goes on with what it had: {refused}",
        )
    if what.startswith("certificate") and told.certificates_refused:
        sentence = next(iter(told.certificates_refused.values()))
        return FALSE, "Refused", f"{name} refuses the new {what}: {sentence}"
    if what:
        return FALSE, "Reloading", f"{name} has yet to take the new {what}; its kubelet brings it."
    waits = waiting(observed, pod)
    if waits:
        no_restart = maintenance.no_restart(observed.broker, observed.time)
        when = f" {no_restart}" if no_restart else ""
        return FALSE, "RestartPending", f"{name} has to be started again for {waits}.{when}"
    return None


def _waiting_settings(observed: Observed) -> str:
    """Say which settings wait for the restart of brokers that have another ConfigMap."""
    try:
        wanted = changes.parts(configuration.from_broker(observed.broker))[0]
    except ConfigError:
        return ""
    current = settings_map.config_map(observed.broker)["metadata"]["name"]
    paths: dict[str, None] = {}
    for pod in observed.pods:
        name = _config_map_of(pod)
        text = ((observed.child(kinds.CONFIG_MAP, name) or {}).get("data") or {}).get(
            settings_map.FILE
        )
        if name in ("", current) or not text:
            continue
        old = _read(text)
        if old is None:
            continue
        for found in changes.differences(old, wanted, Spelling.CAMEL):
            paths.setdefault(found.path)
    if not paths:
        return ""
    return f" Waiting for a restart: {_named(tuple(paths))}."


@functools.lru_cache(maxsize=16)
def _read(text: str) -> Configuration | None:
    """Return the configuration in a `broker.yaml`; None if it can't be read.

    Cached, because every pass of a rollout reads the one that most pods still have.
    """
    try:
        return configuration.from_plain(configuration.parse_yaml(text))
    except ConfigError:
        return None


def _named(paths: tuple[str, ...]) -> str:
    """Name settings in a sentence."""
    more = f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else ""
    return ", ".join(paths[:_NAMED_MAX]) + more


def _config_map_of(pod: Mapping[str, Any]) -> str:
    """Return the ConfigMap that a pod has its `broker.yaml` from; empty if it has none."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("name") == "config":
            return str((volume.get("configMap") or {}).get("name", ""))
    return ""
