"""The version of Vespiary, as `pyproject.toml` has it.

Owns the constant. It is not asked of the installed package: `importlib.metadata` takes longer to
import than the engine. A test holds it against `pyproject.toml`. Called by whatever names itself.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
