"""One seeded fault, as the catalogue describes it. Used by the catalogue and by its runner."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One seeded fault.

    Attributes:
        name: A few words, unique.
        fault: What the broken code does, as a sentence.
        path: The file.
        old: The text that is replaced.
        new: By this.
        killer: The test that must turn red.
    """

    name: str
    fault: str
    path: str
    old: str
    new: str
    killer: str

    @property
    def is_native(self) -> bool:
        """Whether C must be built again."""
        return self.path.endswith(".c")
