"""A configuration that the admin API's tests can have refused."""

from __future__ import annotations

from pathlib import Path

from vespiary_broker.app.reloading import CertificateState, ReloadState
from vespiary_broker.app.users_file import UsersFile
from vespiary_spec.errors import ConfigError


class MemoryReloading:
    """What the API needs of `app.reloading.Reloading`.

    Attributes:
        failure: What the next reload is refused with; None takes it.
    """

    def __init__(self) -> None:
        self.state = ReloadState({"/etc/broker.yaml": "ab" * 32}, 1_000)
        self.users = UsersFile(Path("/nowhere/users"))
        self.failure: ConfigError | None = None

    def certificates(self) -> list[CertificateState]:
        return [
            CertificateState(
                acceptor="all",
                subject="CN=orders",
                not_after_s=2_000_000_000,
                expires_in_s=86_400.5,
                fingerprint="cd" * 32,
                refused="",
            )
        ]

    async def reload(self) -> None:
        if self.failure is not None:
            self.state.failed += 1
            self.state.refused = str(self.failure)
            raise self.failure
        self.state.taken += 1
        self.state.refused = ""
