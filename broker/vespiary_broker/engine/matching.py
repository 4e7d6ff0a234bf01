"""Which messages a consumer wants: its selector, over messages as the core shows them.

Owns the way from a selector's text to a yes or no for a stored message. The language is that of
`selectors`. Used by `subscriptions`; asked by `examined`.
"""

from __future__ import annotations

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.selection.message_values import Extractor
from vespiary_broker.engine.selection.selector import compile_selector
from vespiary_broker.engine.turn_time import evaluation_us
from vespiary_codec.journal.page_sketch import PageSketch


class SelectorMatch:
    """The selector of a consumer.

    Attributes:
        text: As the client wrote it.

    Args:
        text: The selector.
        address: Name of the messages' address.

    Raises:
        InvalidSelector: It is no condition; says where, and what was expected.
    """

    __slots__ = ("_address", "_selector", "_values_of", "text")

    def __init__(self, text: str, address: str) -> None:
        self.text = text
        self._address = address
        self._selector = compile_selector(text)
        self._values_of = Extractor(self._selector.names, address=address).values_of

    @property
    def is_everything(self) -> bool:
        """Whether it matches all messages, whatever they are."""
        return self._selector.is_constant and self._selector.constant is True

    def cost_us(self, message: MessageView) -> float:
        """Return about what `wants` costs at most, in microseconds."""
        return evaluation_us(self._selector.cost_us, len(message.properties))

    def wants(self, message: MessageView) -> bool:
        """Return whether a message matches."""
        return self._selector.matches(self._values_of(message))

    def may_match(self, sketch: PageSketch) -> bool:
        """Return whether a message of a page may match; False: none does."""
        return self._selector.may_match(sketch, self._address)
