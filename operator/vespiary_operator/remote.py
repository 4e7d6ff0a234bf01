"""What running pods say about themselves, over HTTP.

Owns: the one HTTP session to pods. All of it is optional: what cannot be asked is not known, and
the verification's answer holds.
Never: changes anything in a broker but what a plan's calls say; follows redirects; waits longer
than two seconds for an answer, or ten for a change.
Called by: `observer`, `reconciler`.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import json
import logging
import ssl
from typing import Any

import aiohttp

from vespiary_operator import names, pods
from vespiary_operator.admin_ports import AdminPort, Trust
from vespiary_operator.broker_calls import BrokerCall, DrainAnswer, StartDrain
from vespiary_operator.builders import tuning as tuning_builders
from vespiary_operator.observation import BrokerAnswer, ConfigurationAnswer, Object, Space
from vespiary_operator.tuning import NodeReport, report_of

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
CALL_S = 10.0
"""A change waits for the broker's bindings to be flushed."""
_DRAIN = "/api/v1/drain"
ANSWER_BYTES_MAX = 256 * 1024
_SENTENCE_CHARACTERS_MAX = 1000
_SETTINGS_MAX = 100
_VOLUMES_MAX = 16


class Remote:
    """Running pods.

    Owned by the main loop.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def _json(
        self, pod: Object, port: AdminPort, path: str, headers: dict[str, str] | None = None
    ) -> Any:
        """Return a JSON document; None if it cannot be had."""
        url = _url(pod, port, path)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.get(
                url, headers=headers, timeout=timeout, allow_redirects=False, **_tls(port)
            ) as response:
                if response.status != 200:
                    log.debug("%s answered %d", url, response.status)
                    return None
                data = await response.content.read(ANSWER_BYTES_MAX)
                return json.loads(data)
        except aiohttp.ClientConnectorCertificateError as error:
            log.warning("%s is not asked, its certificate is not the Secret's: %s", url, error)
            return None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.debug("%s could not be asked: %r", url, error)
            return None

    async def answer(self, pod: Object, port: AdminPort, password: str) -> BrokerAnswer | None:
        """Return what a broker says about itself; None if it cannot be asked.

        Args:
            pod: Its pod.
            port: Where its HTTP API is called.
            password: Password of `admin`; without one nothing is asked.
        """
        if not password:
            return None
        headers = _login(password)
        # By itself: a silent broker costs one question, and a new login is hashed once.
        found = broker_answer_of(await self._json(pod, port, "/api/v1/brokers", headers))
        if found is None:
            return None
        document, volumes = await asyncio.gather(
            self._json(pod, port, "/api/v1/configuration", headers),
            self._json(pod, port, "/api/v1/volumes", headers),
        )
        return dataclasses.replace(
            found, configuration=configuration_answer_of(document), spaces=spaces_of(volumes)
        )

    async def drain_answer(self, pod: Object, port: AdminPort, password: str) -> DrainAnswer | None:
        """Return what a broker says of its drain; None if it cannot be asked.

        Args:
            pod: Its pod.
            port: Where its HTTP API is called.
            password: Password of `admin`; without one nothing is asked.
        """
        if not password:
            return None
        return drain_answer_of(await self._json(pod, port, _DRAIN, _login(password)))

    async def carry_out(self, call: BrokerCall, port: AdminPort, password: str) -> bool:
        """Ask something of a broker; return whether it was taken.

        Args:
            call: What.
            port: Where its HTTP API is called.
            password: Password of `admin`, which is that of the other broker too.
        """
        method, body = "DELETE", None
        if isinstance(call, StartDrain):
            login = {"user": names.ADMIN_USER, "password": password}
            method, body = "POST", {"target": call.target, **login}
            if call.trust is not None:
                body["authorities"] = call.trust.authorities
                body["serverName"] = call.trust.server_name
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        url = _url(call.pod, port, _DRAIN)
        try:
            async with self._session.request(
                method,
                url,
                json=body,
                headers=_login(password),
                timeout=timeout,
                allow_redirects=False,
                **_tls(port),
            ) as response:
                if response.status in (200, 202):
                    return True
                said = (await response.content.read(2000)).decode(errors="replace")
                log.warning("%s %s answered %d: %s", method, url, response.status, said[:500])
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("%s %s failed, and is tried again: %r", method, url, error)
        return False

    async def node_report(self, pod: Object) -> NodeReport | None:
        """Return what a tuning pod says; None if it cannot be asked."""
        return report_of(await self._json(pod, AdminPort(number=tuning_builders.PORT), "/status"))


def broker_answer_of(document: Any) -> BrokerAnswer | None:
    """Read the answer of `GET /api/v1/brokers`; None if it is no such answer."""
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not items or not isinstance(items[0], dict):
        return None
    # A broker lists itself first.
    found = items[0]
    errors = found.get("clientErrors")
    counted = [errors.get(kind) for kind in errors] if isinstance(errors, dict) else []
    counted += [found.get("loginsRefused"), found.get("messagesDropped")]
    return BrokerAnswer(
        engine=str(found.get("engine", ""))[:20],
        durability=str(found.get("durability", ""))[:20],
        version=str(found.get("version", ""))[:64],
        not_ready_reason=str(found.get("notReadyReason") or "")[:400],
        journal_failed_reason=str(found.get("journalFailedReason") or "")[:400],
        journal_blocked_reason=str(found.get("journalBlockedReason") or "")[:400],
        uptime_s=float(_number(found.get("uptimeS"))),
        messages_in=int(_number(found.get("messagesIn"))),
        messages_out=int(_number(found.get("messagesOut"))),
        messages_acknowledged=int(_number(found.get("messagesAcknowledged"))),
        errors=sum(int(_number(value)) for value in counted),
    )


def drain_answer_of(document: Any) -> DrainAnswer | None:
    """Read the answer of `GET /api/v1/drain`; None if it is no such answer."""
    if not isinstance(document, dict) or not isinstance(document.get("phase"), str):
        return None
    numbers = {}
    for name, field in (
        ("moved", "moved"),
        ("messages_left", "messagesLeft"),
        ("prepared", "prepared"),
    ):
        if not isinstance(document.get(field), int):
            return None
        numbers[name] = int(document[field])
    reason = str(document.get("reason", ""))[:500]
    return DrainAnswer(phase=document["phase"][:20], reason=reason, **numbers)


def _login(password: str) -> dict[str, str]:
    login = base64.b64encode(f"{names.ADMIN_USER}:{password}".encode()).decode()
    return {"Authorization": f"Basic {login}"}


def configuration_answer_of(document: Any) -> ConfigurationAnswer | None:
    """Read the answer of `GET /api/v1/configuration`; None if it is no such answer."""
    try:
        certificates = document["certificates"]
        return ConfigurationAnswer(
            digests={str(each["path"]): str(each["digest"]) for each in document["files"]},
            refused=str(document["refused"])[:_SENTENCE_CHARACTERS_MAX],
            waits_for_restart=tuple(
                str(name)[:200] for name in document.get("waitsForRestart") or ()
            )[:_SETTINGS_MAX],
            users_digest=str(document["users"]["digest"]),
            users_refused=str(document["users"]["refused"])[:_SENTENCE_CHARACTERS_MAX],
            certificates={str(each["acceptor"]): str(each["fingerprint"]) for each in certificates},
            certificates_refused={
                str(each["acceptor"]): str(each["refused"])[:_SENTENCE_CHARACTERS_MAX]
                for each in certificates
                if each["refused"]
            },
        )
    except (KeyError, TypeError):
        return None


def spaces_of(document: Any) -> dict[str, Space]:
    """Read the answer of `GET /api/v1/volumes`; empty if it is no such answer."""
    found = {}
    try:
        for each in document["items"][:_VOLUMES_MAX]:
            numbers = (each["sizeBytes"], each["freeBytes"], each["inodes"], each["freeInodes"])
            if all(isinstance(number, int) and number >= 0 for number in numbers):
                size, free, inodes, free_inodes = numbers
                found[str(each["name"])] = Space(
                    size_bytes=size, free_bytes=free, inodes=inodes, free_inodes=free_inodes
                )
    except (KeyError, TypeError):
        return {}
    return found


def _number(value: object) -> float:
    """Return a number that a broker said; 0 for whatever is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return max(0.0, float(value)) if is_number else 0.0  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _context(trust: Trust) -> ssl.SSLContext:
    """Return what takes a broker's certificate; it is the trust's own, so connections are too."""
    context = ssl.create_default_context(cadata=trust.authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _tls(port: AdminPort) -> dict[str, Any]:
    """Return what a request to this port needs for TLS; nothing if it speaks in clear."""
    if port.trust is None:
        return {}
    return {"ssl": _context(port.trust), "server_hostname": port.trust.server_name}


def _url(pod: Object, port: AdminPort, path: str) -> str:
    address = pods.ip(pod)
    host = f"[{address}]" if ":" in address else address
    scheme = "http" if port.trust is None else "https"
    return f"{scheme}://{host}:{port.number}{path}"
