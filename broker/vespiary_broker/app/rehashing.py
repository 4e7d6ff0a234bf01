"""Stronger hashes for passwords that were hashed by an older version, at the next login.

Owns when a hash is replaced, and what is said if it cannot be: a users file of a Kubernetes Secret
is read-only (the operator replaces its hashes). SCRAM does not show the password, so only logins
that send it count. Must never delay a login. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from vespiary_broker.app.user_changes import replace_hash
from vespiary_broker.engine.logins import Check, Logins
from vespiary_broker.engine.users import make_user
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_spec.errors import LoginBusy, VespiaryError

log = logging.getLogger(__name__)


class Rehashing:
    """Replaces weak hashes of one users file.

    Args:
        path: The users file.
        logins: Is told before a hash is replaced.
        checks: Computes the new hash when no client waits for one.
        spawn: Runs a coroutine in the background.
    """

    def __init__(
        self,
        path: Path,
        logins: Logins,
        checks: PasswordChecks,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._path = path
        self._logins = logins
        self._checks = checks
        self._spawn = spawn
        self._begun: set[str] = set()
        self._is_off = False

    def begin(self, check: Check) -> None:
        """Replace the hash of a user whose password was right, in the background.

        Args:
            check: The check.
        """
        if not self._is_off and check.name not in self._begun:
            self._begun.add(check.name)
            self._spawn(self._run(check))

    async def _run(self, check: Check) -> None:
        user = check.user
        try:
            make = partial(make_user, user.name, check.password, roles=user.roles)
            new = await self._checks.when_idle(make)
            self._logins.expect(user, new)
            if await asyncio.to_thread(replace_hash, self._path, user, new):
                log.info("password hashed again user=%r iterations=%d", user.name, new.iterations)
        except LoginBusy:
            pass  # the next login tries again
        except VespiaryError as error:
            if not self._is_off:
                self._is_off = True
                log.warning(
                    "passwords keep their weaker hashes, since the users file was not changed "
                    "user=%r reason=%r cure='vespiary user password NAME'; on Kubernetes the "
                    "operator replaces them",
                    user.name,
                    str(error),
                )
        finally:
            self._begun.discard(user.name)
