"""What running pods say about themselves, over HTTP.

Owns: the one HTTP session to pods. All of it is optional: what cannot be asked is not known, and
the verification's answer holds.
Never: changes anything in a broker; follows redirects; waits longer than two seconds.
Called by: `observation`, `reconciler`.
"""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import aiohttp

from vespiary_operator import names, pods
from vespiary_operator.builders import tuning as tuning_builders
from vespiary_operator.observation import BrokerAnswer, Object
from vespiary_operator.tuning import NodeReport, report_of

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 256 * 1024


class Remote:
    """Running pods.

    Owned by the main loop.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def _json(self, url: str, headers: dict[str, str] | None = None) -> Any:
        """Return a JSON document; None if it cannot be had."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.get(
                url, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    log.debug("%s answered %d", url, response.status)
                    return None
                data = await response.content.read(ANSWER_BYTES_MAX)
                return json.loads(data)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.debug("%s could not be asked: %r", url, error)
            return None

    async def answer(self, pod: Object, port: int, password: str) -> BrokerAnswer | None:
        """Return what a broker says about itself; None if it cannot be asked.

        Args:
            pod: Its pod.
            port: Its HTTP port.
            password: Password of `admin`; without one nothing is asked.
        """
        if not password:
            return None
        login = base64.b64encode(f"{names.ADMIN_USER}:{password}".encode()).decode()
        document = await self._json(
            _url(pod, port, "/api/v1/brokers"), {"Authorization": f"Basic {login}"}
        )
        return broker_answer_of(document)

    async def node_report(self, pod: Object) -> NodeReport | None:
        """Return what a tuning pod says; None if it cannot be asked."""
        return report_of(await self._json(_url(pod, tuning_builders.PORT, "/status")))


def broker_answer_of(document: Any) -> BrokerAnswer | None:
    """Read the answer of `GET /api/v1/brokers`; None if it is no such answer."""
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not items or not isinstance(items[0], dict):
        return None
    # A broker lists itself first.
    return BrokerAnswer(
        engine=str(items[0].get("engine", ""))[:20],
        durability=str(items[0].get("durability", ""))[:20],
        version=str(items[0].get("version", ""))[:64],
    )


def _url(pod: Object, port: int, path: str) -> str:
    address = pods.ip(pod)
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"
