"""What the core keeps of the sessions of a connection of AMQP.

Owns plain state. Used by `amqp` and `amqp_sending`.
"""

from __future__ import annotations


class AmqpSession:
    """One session.

    Attributes:
        window: Transfers of the client that the core may take.
    """

    def __init__(self) -> None:
        self.window = 0
