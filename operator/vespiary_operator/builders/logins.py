"""The Secrets: generated credentials for people, and the users file for the pods.

Never: makes up a password (that is `users`), or puts one into the users file.
Called by: `plan`.
"""

from __future__ import annotations

import base64
from typing import Any

from vespiary_operator import names
from vespiary_spec.resources import Broker


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def credentials(broker: Broker, password: str) -> dict[str, Any]:
    """Return the Secret with the password of `admin`; it is created once and never written again.

    Args:
        broker: The Broker.
        password: The password.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(broker, names.credentials_secret(broker.metadata.name)),
        "type": "Opaque",
        "data": {names.ADMIN_USER: _encoded(password)},
    }


def users(broker: Broker, text: str) -> dict[str, Any]:
    """Return the Secret with the users file.

    Args:
        broker: The Broker.
        text: The file, with salted hashes.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(broker, names.users_secret(broker.metadata.name)),
        "type": "Opaque",
        "data": {names.USERS_KEY: _encoded(text)},
    }
