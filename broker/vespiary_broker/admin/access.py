"""Who may ask for what: the checks that a request passes before it is looked at.

Owns: the check against DNS rebinding, the check of a page's origin, the login, roles. Must
never log a password. Called by `endpoints`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.problems import Refused, refused
from vespiary_broker.engine.logins import Principal
from vespiary_broker.server.web_pages import Asked, is_loopback, refusal_at_http_port
from vespiary_spec.errors import LoginBusy, LoginRefused
from vespiary_spec.security import ADMIN_ROLE

if TYPE_CHECKING:
    from vespiary_broker.admin.route import Route
    from vespiary_broker.admin.tls import HttpTls

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="vespiary", charset="UTF-8"'}
_CREDENTIALS_CHARACTERS_MAX: Final = 4096


class Access:
    """Lets requests in.

    Args:
        broker: The broker.
        host: Address that is listened on.
        tls: Says whom client certificates stand for; None without TLS.
    """

    def __init__(self, broker: Broker, host: str, tls: HttpTls | None = None) -> None:
        self._broker = broker
        self._tls = tls
        self._is_loopback = is_loopback(host)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can ask."""
        return self._is_loopback

    def check_place(self, headers: Mapping[str, str]) -> None:
        """Check where a request wants to go and which page it comes from.

        Args:
            headers: Headers of the request, by name in any case.

        Raises:
            Refused: 421 for another host, 403 for another origin.
        """
        site = headers.get("Sec-Fetch-Site", "none")
        asked = Asked(headers.get("Host", ""), headers.get("Origin"), site)
        refusal = refusal_at_http_port(asked, is_on_loopback=self._is_loopback)
        if refusal is not None:
            status, sentence = refusal
            raise Refused(status.value, f"{sentence}.")

    async def login(
        self,
        headers: Mapping[str, str],
        peer: str,
        transport: asyncio.Transport | None = None,
    ) -> Principal:
        """Return who asks: by name and password, else by the client's certificate.

        Args:
            headers: Headers of the request.
            peer: Address of the client's machine.
            transport: The connection; None: it has no certificate, and stays.

        Raises:
            Refused: 401 no or a wrong login, 503 not now.
        """
        logins = self._broker.logins
        if logins is None:
            reason = self._broker.not_ready_reason or "the broker is starting"
            raise Refused(503, f"Not now: {reason}.", headers={"Retry-After": "2"})
        name, password = _credentials(headers.get("Authorization", ""))
        clock = asyncio.get_running_loop().time
        shown = "" if self._tls is None or name is not None else self._tls.user_of(transport)
        try:
            if shown:
                return logins.by_certificate(shown, peer)
            outcome = logins.begin(name, password, peer, clock())
            if isinstance(outcome, Principal):
                return outcome
            is_good = await self._broker.passwords.is_good(
                outcome, lambda: transport is None or not transport.is_closing()
            )
            return logins.finish(outcome, is_good=is_good, now_s=clock())
        except LoginBusy as error:
            raise Refused(503, str(error), headers={"Retry-After": "1"}) from error
        except LoginRefused as error:
            if name is not None or shown:
                self._broker.passwords.failures.note(
                    error, protocol="HTTP", listener="http", peer=peer, now_s=clock()
                )
            raise _unauthorised(error, name or shown or None) from error

    def check(self, principal: Principal, route: Route) -> None:
        """Check that somebody may call an operation about which no rules decide.

        Raises:
            Refused: 403: it needs the role `admin`.
        """
        if route.is_change:
            self.check_administrator(principal, "may look but not change")
        elif route.is_private:
            self.check_administrator(principal, f"may not call {route.operation}")

    def check_administrator(self, principal: Principal, what: str) -> None:
        """Check that somebody is an administrator.

        Args:
            principal: Who asks.
            what: What others may not, as the rest of a sentence.

        Raises:
            Refused: 403: it is none.
        """
        if not is_administrator(principal):
            raise Refused(
                403,
                f"The user {principal.name} {what}: that needs the role "
                f"{ADMIN_ROLE} (`vespiary user add NAME --role {ADMIN_ROLE}`).",
            )


def is_administrator(principal: Principal) -> bool:
    """Return whether somebody may everything: by its role, or since nobody has to log in."""
    return principal.is_anonymous or ADMIN_ROLE in principal.roles


def _unauthorised(error: LoginRefused, name: str | None) -> Refused:
    """Return the answer to a refused login.

    Args:
        error: Why.
        name: User name that was given; None if none was.
    """
    if name is None:
        text = "This needs a login: HTTP Basic, as a user that `vespiary user add` made."
        return Refused(401, text, code=error.code, headers=dict(_CHALLENGE))
    answer = refused(error, 401)
    answer.headers = dict(_CHALLENGE)
    return answer


def _credentials(header: str) -> tuple[str | None, str | None]:
    """Return name and password of an Authorization header; None and None if it has none.

    Raises:
        Refused: 401: it is no Basic login.
    """
    if not header:
        return None, None
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic" or len(text) > _CREDENTIALS_CHARACTERS_MAX:
        raise Refused(401, "Only HTTP Basic logins are taken.", headers=dict(_CHALLENGE))
    try:
        plain = base64.b64decode(text.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        plain = ""
    name, colon, password = plain.partition(":")
    if not colon:
        raise Refused(401, "The login is not user:password in base64.", headers=dict(_CHALLENGE))
    return name, password
