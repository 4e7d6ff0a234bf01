"""Fuzz targets of Python code: how one is driven, and where its inputs come from.

Owns the command line that `tests/fuzz/test_*_decoder_fuzz.py` have as programs:

    python tests/fuzz/test_stomp_decoder_fuzz.py --random COUNT [SEED]
    python tests/fuzz/test_stomp_decoder_fuzz.py --replay FILE...
    python tests/fuzz/test_stomp_decoder_fuzz.py FOLDER... [libFuzzer options]

The first makes inputs at random: a third by the target's own rules, the others by bending those and
what is kept in the corpus. The last is guided by coverage (atheris), and adds what it finds to the
first folder. Must never: lose an input that was a finding (`save_finding`).
"""

from __future__ import annotations

import gc
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Final, NamedTuple

from vespiary_testkit.seeds import seed_for

ROOT: Final = Path(__file__).resolve().parents[2]
FINDINGS: Final = ROOT / "build/fuzz/findings"
CORPORA: Final = ROOT / "tests/fuzz/corpus"
INPUT_BYTES_MAX: Final = 1024
_POOL_MADE: Final = 2000
_EDGES: Final = (b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\n", b"\xff\xff", b"\0\0\0\0")


class FuzzTarget(NamedTuple):
    """One thing that is fuzzed.

    Attributes:
        name: Of its corpus, and its file: `stomp_decoder` is in `test_stomp_decoder_fuzz.py`.
        check: Runs one input; an exception is a finding.
        made: Makes an input that mostly keeps the rules.
        words: What is worth putting somewhere.
        package: The code whose coverage guides.
    """

    name: str
    check: Callable[[bytes], object]
    made: Callable[[random.Random], bytes]
    words: Sequence[bytes]
    package: str


def in_pieces(choice: int, stream: bytes) -> list[bytes]:
    """Return a stream in pieces: a quarter of all choices cut it every 1 to 7 bytes, others once.

    Args:
        choice: 0 to 255.
        stream: What is cut.
    """
    if choice < 64:
        step = choice % 7 + 1
        return [stream[at : at + step] for at in range(0, len(stream), step)]
    middle = (choice - 64) * len(stream) // 192
    return [stream[:middle], stream[middle:]]


def corpus(name: str) -> list[bytes]:
    """Return the inputs that are kept of a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPORA / name).iterdir())]


def bent(source: random.Random, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one of the pool with one to three things wrong."""
    data = bytearray(source.choice(pool))
    for _ in range(source.choice((1, 1, 2, 3))):
        act = int(source.random() * 8)
        at = int(source.random() * (len(data) + 1))
        length = int(source.random() * source.choice((2, 4, 16)))
        if act == 0:
            data[at : at + 1] = source.choice(_EDGES)
        elif act == 1 and at < len(data):
            data[at] ^= 1 << int(source.random() * 8)
        elif act == 2 and at < len(data):
            data[at] = (data[at] + source.choice((-1, 1))) & 255
        elif act == 3:
            del data[at : at + length]
        elif act == 4:
            data[at:at] = source.choice(words)
        elif act == 5:
            data[at : at + length] = source.choice(words)
        elif act == 6:
            data[at:at] = data[at : at + 2 * length]
        else:  # the rest is another's
            other = source.choice(pool)
            data[at:] = other[int(source.random() * (len(other) + 1)) :]
    return bytes(data[:INPUT_BYTES_MAX])


def inputs(target: FuzzTarget, seed: int, count: int) -> Iterator[bytes]:
    """Make inputs, a function of the seed and of the corpus that is kept."""
    source = random.Random(seed)
    pool = corpus(target.name)
    kept = len(pool)
    for number in range(count):
        if number % 3 == 0 or not pool:
            data = target.made(source)
            if len(pool) < kept + _POOL_MADE:
                pool.append(data)
            else:
                pool[kept + int(source.random() * _POOL_MADE)] = data
            yield data
        else:
            yield bent(source, pool, target.words)


def likely_inputs(
    make: Callable[[random.Random], bytes],
    source: random.Random,
    count: int,
    is_enough: Callable[[], bool],
) -> Iterator[bytes]:
    """Make `count` inputs, and up to ten times as many until `is_enough`: some cases are rare."""
    for number in range(10 * count):
        if number >= count and is_enough():
            return
        yield make(source)


def program(target: FuzzTarget) -> str:
    """Return the path of a target's file from the root."""
    return f"tests/fuzz/test_{target.name}_fuzz.py"


def save_finding(target: FuzzTarget, data: bytes) -> Path:
    """Keep an input, print how to repeat it, and return where it is."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{target.name}-{hashlib.sha1(data).hexdigest()[:16]}"
    path.write_bytes(data)
    print(
        f"{target.name}: a finding, kept in {path}. To repeat it:\n"
        f"  PYTHONPATH=tests .venv/bin/python {program(target)} --replay {path}",
        file=sys.stderr,
    )
    return path


def run_random(target: FuzzTarget, count: int, seed: int) -> None:
    """Run random inputs until the count is reached or one is a finding, which is raised."""
    for data in inputs(target, seed, count):
        try:
            target.check(data)
        except Exception:
            print(f"{target.name}: seed {seed}: {data!r}", file=sys.stderr)
            save_finding(target, data)
            raise
    print(f"{target.name}: {count} inputs, seed {seed}: no finding", flush=True)


def run_guided(target: FuzzTarget, arguments: list[str]) -> int:
    """Let libFuzzer choose inputs by the coverage of the target's package; it ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed; use --random COUNT [SEED]", file=sys.stderr)
        return 2
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (each.__module__ or "").startswith(target.package):
            atheris.instrument_func(each)
    atheris.Setup(arguments, target.check)
    atheris.Fuzz()
    return 0


def main(target: FuzzTarget, arguments: list[str]) -> int:
    """Do what the command line says (see the module's docstring); return the exit code."""
    kind = arguments[1] if len(arguments) > 1 else ""
    if kind == "--random":
        seed = int(arguments[3]) if len(arguments) > 3 else seed_for(target.name)
        run_random(target, int(arguments[2]), seed)
        return 0
    if kind == "--replay":
        for name in arguments[2:]:
            target.check(Path(name).read_bytes())
        print(f"{target.name}: {len(arguments) - 2} inputs: no finding")
        return 0
    return run_guided(target, arguments)
