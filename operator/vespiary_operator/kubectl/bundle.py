"""A support bundle: what somebody else needs to understand a Broker, without any secret.

Owns: which files are in it. What cannot be read is named in `not-read.txt`, with the reason. Of
Secrets the names are asked for and nothing else; everything else goes through `redaction`.
Never: changes anything. Called by: `kubectl vespiary support-bundle`.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vespiary_operator import kinds, names
from vespiary_operator.kinds import Kind
from vespiary_operator.kubectl import redaction
from vespiary_operator.kubectl.access import METADATA_ONLY, AccessError, Api, items, path_of

LOG_BYTES_MAX = 2 << 20
_OBJECTS = (
    kinds.STATEFUL_SET,
    kinds.POD,
    kinds.SERVICE,
    kinds.CONFIG_MAP,
    kinds.SERVICE_ACCOUNT,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
    kinds.CLAIM,
)


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(redaction.document(value), sort_keys=False, width=120).encode()


class Collection:
    """The files of a bundle, and what could not be read.

    Args:
        api: The API server.
        broker: Name of one Broker; empty takes all of the namespace.
    """

    def __init__(self, api: Api, broker: str = "") -> None:
        self._api = api
        self._broker = broker
        self.refused: list[str] = []

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents."""
        query = {"fieldSelector": f"metadata.name={self._broker}"} if self._broker else {}
        yield "brokers.yaml", _yaml(self._items(kinds.BROKER, **query))
        wanted = {names.LABEL_NAME: "vespiary", names.LABEL_COMPONENT: names.COMPONENT_BROKER}
        if self._broker:
            wanted[names.LABEL_INSTANCE] = self._broker
        selector = names.selector(wanted)
        pods: list[dict[str, Any]] = []
        for kind in _OBJECTS:
            found = self._items(kind, labelSelector=selector)
            pods = found if kind is kinds.POD else pods
            yield f"{kind.plural}.yaml", _yaml(found)
        secrets = self._items(kinds.SECRET, METADATA_ONLY, labelSelector=selector)
        yield "secret-names.yaml", _yaml([one["metadata"]["name"] for one in secrets])
        yield "events.yaml", _yaml(self._events())
        for pod in pods:
            yield from self._of_pod(pod)
        if self.refused:
            yield "not-read.txt", redaction.text("\n".join([*self.refused, ""])).encode()

    def _items(
        self, kind: Kind, accept: str = "application/json", **query: str
    ) -> list[dict[str, Any]]:
        path = path_of(kind, self._api.namespace)
        try:
            return items(self._api, path, accept, **query)
        except AccessError as error:
            self.refused.append(str(error))
            return []

    def _events(self) -> list[dict[str, Any]]:
        found = self._items(kinds.EVENT)
        if not self._broker:
            return found
        return [
            event
            for event in found
            if str((event.get("involvedObject") or {}).get("name", "")).startswith(self._broker)
        ]

    def _of_pod(self, pod: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
        name = pod["metadata"]["name"]
        path = path_of(kinds.POD, self._api.namespace, name, "log")
        spec = pod.get("spec") or {}
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            for previous in ("false", "true"):
                query = {"container": container["name"], "limitBytes": str(LOG_BYTES_MAX)}
                try:
                    data = self._api.get(path, "*/*", previous=previous, **query)
                except AccessError as error:
                    if previous == "false":
                        self.refused.append(str(error))
                    continue
                ending = "-previous" if previous == "true" else ""
                text = redaction.text(data.decode("utf-8", "replace"))
                yield f"logs/{name}-{container['name']}{ending}.log", text.encode()
        scheme, port = _metrics_port(spec)
        if port:
            place = f"{scheme}{name}:{port}"
            proxy = path_of(kinds.POD, self._api.namespace, place, "proxy")
            try:
                data = self._api.get(f"{proxy}/metrics", "*/*")
            except AccessError as error:
                self.refused.append(str(error))
            else:
                yield (
                    f"metrics/{name}.txt",
                    redaction.text(data.decode("utf-8", "replace")).encode(),
                )


def _metrics_port(spec: dict[str, Any]) -> tuple[str, int]:
    """Return the port of a broker's metrics, which is that of its probes; 0 if it names none.

    Before it stands what the API server's proxy takes in front of the pod's name: `https:` for TLS.
    """
    for container in spec.get("containers") or ():
        asked = (container.get("readinessProbe") or {}).get("httpGet") or {}
        scheme = "https:" if asked.get("scheme") == "HTTPS" else ""
        for port in container.get("ports") or ():
            if asked and port.get("name") == asked.get("port"):
                return scheme, int(port["containerPort"])
    return "", 0


def write(api: Api, target: Path, broker: str = "") -> list[str]:
    """Write a bundle; return what could not be read.

    Args:
        api: The API server.
        target: The `.tar.gz` to make; it must not be there.
        broker: Name of one Broker; empty takes all of the namespace.

    Raises:
        FileExistsError: The file is there.
    """
    collection = Collection(api, broker)
    root = target.name.removesuffix(".tar.gz")
    with target.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in collection.files():
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return collection.refused
