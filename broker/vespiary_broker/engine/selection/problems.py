"""What is wrong with a selector, before anybody knows the text around it."""

from __future__ import annotations


class Problem(ValueError):  # noqa: N818 - `InvalidSelector` is the error that others see
    """A selector is wrong.

    Attributes:
        position: Index of the character where it shows, 0 to the length of the text.
        what: What is wrong, one clause.
        hint: What is right; empty if `what` says it.
    """

    def __init__(self, position: int, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.position = position
        self.what = what
        self.hint = hint
