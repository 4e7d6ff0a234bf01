"""Runs the seeded faults of `mutant_catalogue`: patch a copy, run the killer, demand red.

`Workshop` owns a copy of the packages and tests in a temporary folder, with the C part built there
without optimisation (for a C mutant one file is compiled again and linked). The repository
itself is never changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from vespiary_testkit.mutant import Mutant
from vespiary_testkit.mutant_catalogue import MUTANTS
from vespiary_testkit.seeds import VARIABLE, run_seed, seed_for

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("broker", "native", "crds", "operator", "pipeline", "tests")
_COPIED = (*_PACKAGES, "benchmarks", "docs", "charts", "examples")
_EXTENSION = "native/vespiary_native/_native.abi3.so"
_C_FLAGS = ("-std=c11", "-O0", "-fPIC", "-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030b0000", "-w")
KILL_S = 60.0
"""Most seconds of a killer; without a mutant it takes a few, most take less than one."""
ALL_KILLERS_S = 900.0
IMAGES = "20000"
"""Images of power cuts in a killer: some faults show in one image of thousands."""
WAIT_S = 10.0
"""Longest wait of a killer for what its mutant prevents; without a mutant it waits longer."""
SEEDS_MAX = 5
"""A fault that the cases of so many seeds do not meet is not noticed."""
_CHOOSES = ("seed_for(", "hypothesis")
"""What the file of a test that chooses at random has in it."""
_RED = 1
"""pytest's exit code for failed tests; others say that the run itself did not work."""


class Outcome(NamedTuple):
    """How a run of a killer ended.

    Attributes:
        is_red: The test failed.
        is_sound: It ran at all: neither the patch broke an import nor is the test unknown.
        text: The end of what it printed.
    """

    is_red: bool
    is_sound: bool
    text: str


def applies(mutant: Mutant, text: str) -> bool:
    """Whether the mutant's text stands in the source exactly once, and changes it."""
    return text.count(mutant.old) == 1 and mutant.old != mutant.new


class Workshop:
    """A copy of the repository to break.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects = folder / "objects"
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "bin", "build", "*.o", "mutants")
        for name in _COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, folder / name)
        self._changes = 0
        self._build_all()

    # --- building ---------------------------------------------------------------------------------

    def _build_all(self) -> None:
        self._objects.mkdir()
        glue = self._objects / "_native.c"
        emit = (
            "import runpy, sys;"
            "runpy.run_path('native/build_native.py')['ffi'].emit_c_code(sys.argv[1])"
        )
        self._call([sys.executable, "-c", emit, str(glue)])
        include = f"-I{sysconfig.get_paths()['include']}"
        self._call(["gcc", *_C_FLAGS, "-Inative/src", include, "-c", str(glue), "-o", f"{glue}.o"])
        for source in sorted((self.folder / "native/src").glob("*.c")):
            self._compile(source)
        self._link()

    def _compile(self, source: Path) -> None:
        target = self._objects / f"{source.name}.o"
        self._call(["gcc", *_C_FLAGS, "-Inative/src", "-c", str(source), "-o", str(target)])

    def _link(self) -> None:
        objects = [str(path) for path in sorted(self._objects.glob("*.o"))]
        target = self.folder / _EXTENSION
        target.unlink(missing_ok=True)
        self._call(["gcc", "-shared", *objects, "-o", str(target)])

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"

    # --- breaking ---------------------------------------------------------------------------------

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """Break the copy, run the killer, mend the copy."""
        text = (self.folder / mutant.path).read_text()
        assert applies(mutant, text), (
            f"mutant '{mutant.name}' does not apply: its text stands {text.count(mutant.old)} times"
            f" in {mutant.path}; bring it along in tests/vespiary_testkit/mutant_catalogue.py"
        )
        with self.broken(mutant.path, text.replace(mutant.old, mutant.new)):
            return self.run_seeds(mutant.killer)

    @contextmanager
    def broken(self, path: str, text: str) -> Iterator[None]:
        """Give a file of the copy another text for a while."""
        source = self.folder / path
        original = source.read_text()
        try:
            self._write(source, text)
            yield
        finally:
            self._write(source, original)

    def _write(self, source: Path, text: str) -> None:
        source.write_text(text)
        # Python compares the seconds of the time of change: each change gets a second of its own.
        self._changes += 1
        os.utime(source, (1_000_000_000 + self._changes,) * 2)
        if source.suffix == ".c":
            self._compile(source)
            self._link()

    def run_seeds(self, killer: str) -> Outcome:
        """Run one test in the copy; one that chooses at random, with other seeds until it is red.

        The cases of one seed may not meet the fault; those of many seeds do.
        """
        outcome = self.run(killer)
        is_random = not killer.startswith("C:") and any(map(self._text(killer).count, _CHOOSES))
        for number in range(1, SEEDS_MAX if is_random else 1):
            if outcome.is_red or not outcome.is_sound:
                break
            outcome = self.run(killer, **{VARIABLE: str(seed_for(f"killer {number}"))})
        return outcome

    def run(self, killer: str, **changes: str) -> Outcome:
        """Run one test in the copy, with changes of its environment."""
        if killer.startswith("C:"):
            return self._run_c(killer[2:])
        return self.run_pytest(
            [killer], KILL_S, VESPIARY_WAIT_S=str(WAIT_S), VESPIARY_IMAGES=IMAGES, **changes
        )

    def run_pytest(self, nodes: list[str], limit_s: float, **changes: str) -> Outcome:
        """Run tests of the copy until the first failure.

        Args:
            nodes: The tests.
            limit_s: Seconds after which it counts as red.
            changes: What is different in their environment.
        """
        paths = os.pathsep.join(str(self.folder / name) for name in _PACKAGES)
        seed = {VARIABLE: str(run_seed())}  # the copy has no commit to take it from
        environment = {**os.environ, "PYTHONPATH": paths, "VESPIARY_NATIVE": "1"} | seed | changes
        environment.pop("VESPIARY_RING", None)
        environment["CI"] = "true"  # state machines then make no failure small, which takes minutes
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-p", "no:xdist"]
        if not any("hypothesis" in self._text(node) for node in nodes):
            command += ["-p", "no:hypothesispytest"]  # half of pytest's start
        # Not where the run that is around this one keeps its folders.
        command += [f"--basetemp={self.folder / 'tmp'}", *nodes]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return Outcome(is_red=True, is_sound=True, text=f"no end within {limit_s:g} s")
        # A C mutant may end the interpreter by a signal: that is red too.
        is_red = done.returncode == _RED or done.returncode < 0
        is_sound = is_red or done.returncode == 0
        return Outcome(is_red, is_sound, (done.stdout + done.stderr)[-3000:])

    def _text(self, node: str) -> str:
        return (self.folder / node.partition("::")[0]).read_text()

    def _run_c(self, name: str) -> Outcome:
        target = self._objects / name
        objects = [str(path) for path in self._objects.glob("*.c.o") if path.stem != "_native.c"]
        test = f"native/tests/{name}.c"
        self._call(
            ["gcc", *_C_FLAGS, "-Inative/src", test, *objects, "-o", str(target), "-lpthread"]
        )
        done = subprocess.run(
            [str(target)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=KILL_S,
        )
        return Outcome(done.returncode != 0, is_sound=True, text=done.stdout + done.stderr)


def killers() -> list[str]:
    """Return all killers once, in order."""
    return list(dict.fromkeys(mutant.killer for mutant in MUTANTS))


def table() -> str:
    """Return the table of docs/internals/mutants.md."""
    lines = ["| fault | in | killed by |", "|---|---|---|"]
    for mutant in MUTANTS:
        place = mutant.path.removeprefix("broker/").removeprefix("native/")
        killer = mutant.killer
        if killer.startswith("C:"):
            killer = f"native/tests/{killer[2:]}.c"
        file, _, test = killer.partition("::")
        shown = f"`{Path(file).name}`" + (f" `{test}`" if test else "")
        lines.append(f"| **{mutant.name}**: {mutant.fault} | `{place}` | {shown} |")
    return "\n".join(lines) + "\n"
