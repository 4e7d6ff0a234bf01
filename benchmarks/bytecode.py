"""Compiles the packages before they are measured, as `pip install` and `make run` do.

Without it a start would be measured that compiles 150 modules, wherever the source was changed or
`PYTHONDONTWRITEBYTECODE` is set. Called by `benchmarks.__main__` and `benchmarks.journal.__main__`.
"""

import compileall
import importlib.util
from pathlib import Path

PACKAGES = ("vespiary_spec", "vespiary_codec", "vespiary_native", "vespiary_broker")


def compile_packages() -> None:
    """Bring the bytecode of the broker's packages up to date.

    Raises:
        RuntimeError: A package is not installed, or a module does not compile.
    """
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise RuntimeError(f"{package} is not installed: run `make run` once")
        if not compileall.compile_dir(Path(found.origin).parent, quiet=1):
            raise RuntimeError(f"{package} does not compile, or its folder cannot be written")
