"""Which inputs of a fuzz target are worth keeping: few, short ones that reach all that is reached.

Owns the choice. Of decoders it is made by the steps from line to line that an input takes in the
target's package; of scanners by libFuzzer. Must never: drop an input that alone reaches something.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from vespiary_testkit.fuzz_target import CORPORA, ROOT, FuzzTarget, program

Step = tuple[str, int, int, int]
_COUNTS = (1, 2, 4, 16, 128)


def load(name: str) -> FuzzTarget:
    """Return the target of a test file."""
    path = ROOT / "tests/fuzz" / f"test_{name}_fuzz.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    target = module.TARGET
    assert isinstance(target, FuzzTarget), program(target)
    return target


def reached(target: FuzzTarget, data: bytes) -> frozenset[Step]:
    """Return the steps between lines of the target's package that an input takes.

    A step is a file, its two lines, and about how often it was taken.
    """
    folder = str(ROOT / "broker" / target.package.replace(".", "/"))
    counts: dict[tuple[str, int, int], int] = {}

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folder):
            return None
        before = code.co_firstlineno

        def moved(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                step = (code.co_filename, before, inner.f_lineno)
                counts[step] = counts.get(step, 0) + 1
                before = inner.f_lineno
            return moved

        return moved

    outside = sys.gettrace()
    sys.settrace(entered)
    try:
        target.check(data)
    finally:
        sys.settrace(outside)
    return frozenset(
        (*step, sum(count >= least for least in _COUNTS)) for step, count in counts.items()
    )


def chosen(found: dict[bytes, frozenset[Step]]) -> list[bytes]:
    """Return inputs that reach all that is reached; first those that reach most for their size."""
    left = set().union(*found.values()) if found else set()
    kept: list[bytes] = []
    while left:
        best = max(found, key=lambda data: (len(found[data] & left) / (len(data) + 64), data))
        kept.append(best)
        left -= found[best]
    return kept


def _read(folders: list[Path]) -> list[bytes]:
    return sorted({path.read_bytes() for folder in folders for path in folder.iterdir()})


def _write(name: str, kept: list[bytes]) -> None:
    folder = CORPORA / name
    names = {hashlib.sha1(data).hexdigest(): data for data in kept}
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    for each, data in names.items():
        (folder / each).write_bytes(data)


def minimise_decoder(name: str, folders: list[Path]) -> list[bytes]:
    """Keep the best of what is in folders as the corpus of a decoder; return it."""
    target = load(name)
    kept = chosen({data: reached(target, data) for data in _read(folders)})
    _write(name, kept)
    return kept


def minimise_scanner(binary: Path, folders: list[Path], environment: dict[str, str]) -> list[bytes]:
    """Keep the best of what is in folders as the corpus of a scanner; return it."""
    with tempfile.TemporaryDirectory() as made:
        command = [str(binary), "-set_cover_merge=1", made, *map(str, folders)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        kept = _read([Path(made)])
    _write(binary.name, kept)
    return kept
