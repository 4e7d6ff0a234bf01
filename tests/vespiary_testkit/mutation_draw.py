"""Draws mutations of the product packages with a fixed seed, and tries them against the tests.

    python -m vespiary_testkit.mutation_draw list
    python -m vespiary_testkit.mutation_draw try NUMBER TEST...

`list` prints what was drawn; `try` applies one of them in a copy of the tree and runs the tests
that are named. The draw depends on the source: docs/internals/drawn-mutations.md names the commit.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from vespiary_testkit.mutant_runner import ROOT, Workshop

SEED: Final = 22
SHARES: Final = (
    ("broker/vespiary_broker", 22),
    ("native/src", 12),
    ("operator/vespiary_operator", 10),
    ("broker/vespiary_codec", 6),
    ("crds/vespiary_spec", 4),
    ("pipeline/vespiary_pipeline", 4),
    ("native/vespiary_native", 2),
)
"""How many mutations are drawn from each package."""
TRY_S: Final = 900.0

_SKIPPED_FOLDERS: Final = frozenset({"twin", "__pycache__"})
_TEXT_FUNCTIONS: Final = frozenset({"__repr__", "__str__"})
_LOGS: Final = re.compile(r"\b_?log(ger)?\b|\b_?(say|print|echo|warn)\(|super\(\)", re.IGNORECASE)
_SWAPPED: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}


class Mutation(NamedTuple):
    """One small change of a source file.

    Attributes:
        path: The file, relative to the repository.
        function: The innermost function around it.
        start: Where the replaced bytes begin.
        end: Where they end.
        new: What replaces them.
    """

    path: str
    function: str
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """Return the place, and its line before and after."""
        line = source.count(b"\n", 0, self.start) + 1
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        before = source[first:last]
        after = source[first : self.start] + self.new.encode() + source[self.end : last]
        shown = " -> ".join(f"`{b' '.join(text.split()).decode()}`" for text in (before, after))
        return f"{self.path}:{line} {self.function}: {shown}"


# --- Python -------------------------------------------------------------------------------------


class _PythonSites(ast.NodeVisitor):
    """Collects the mutations of one Python file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._path = path
        self._source = source
        self._function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, start: int, end: int, new: str) -> None:
        function = self._function.name if self._function else "(module)"
        self.found.append(Mutation(self._path, function, start, end, new))

    def _negate(self, node: ast.expr) -> None:
        text = self._text(node)
        if "TYPE_CHECKING" not in text:
            self._add(*self._span(node), f"(not ({text}))")

    def _swap_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        match = re.search(rb"(?<![<>=!\w])" + old.encode() + rb"(?![=\w])", self._source[start:end])
        if match:
            self._add(start + match.start(), start + match.end(), new)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _TEXT_FUNCTIONS:
            return
        outer, self._function = self._function, node
        for statement in node.body:
            self.visit(statement)
        self._function = outer

    visit_FunctionDef = _visit_function  # noqa: N815
    visit_AsyncFunctionDef = _visit_function  # noqa: N815

    def _skip(self, node: ast.AST) -> None:
        """Texts for people and defensive checks: tests need not notice a change."""

    visit_Assert = _skip  # noqa: N815
    visit_Raise = _skip  # noqa: N815
    visit_JoinedStr = _skip  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or _LOGS.search(self._text(call)):
            return
        self._add(*self._span(node), "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        returns = self._function.returns if self._function else None
        if node.value is not None and isinstance(returns, ast.Name) and returns.id == "bool":
            self._negate(node.value)
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    visit_While = visit_If  # noqa: N815
    visit_IfExp = visit_If  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if type(operator) in _SWAPPED:
                self._swap_between(left, right, *_SWAPPED[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap_between(left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_sum = isinstance(node.op, ast.Add | ast.Sub)
        if is_sum and isinstance(node.right, ast.Constant) and node.right.value == 1:
            self._add(*self._span(node.right), "0")
        self.generic_visit(node)


# --- C ------------------------------------------------------------------------------------------

_C_FUNCTION: Final = re.compile(
    rb"^(?!typedef|struct \w+ \{|enum)\w[^;{}=]*?\b(\w+)\([^;{}]*\)\s*\{", re.M
)
_C_NOISE: Final = re.compile(rb"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\])+'", re.S)
_C_SWAPS: Final = (
    *((rf" ({re.escape(old)}) ", new) for old, new in _SWAPPED.values()),
    (r" (&&)(?=\s)", "||"),
    (r" (\|\|)(?=\s)", "&&"),
    (r" [+-] (1)\b(?![.x])", "0"),
    (r"\breturn (true);", "false"),
    (r"\breturn (false);", "true"),
    (r"\n +((?!(?:return|while|if|for|switch)\b)\w+\([^;{}]*\);)(?=\n)", ";"),
    (r"\b(?:if|while) \(([^(){};\n]*(?:\([^()\n]*\)[^(){};\n]*)*)\)(?= \{?|\n)", ""),
)
"""What is replaced (the group), by what; no replacement means that the condition is negated."""


def _c_sites(path: str, source: bytes) -> Iterator[Mutation]:
    blank = _C_NOISE.sub(lambda match: b" " * len(match.group()), source)
    for head in _C_FUNCTION.finditer(blank):
        end = blank.find(b"\n}", head.end())
        for pattern, new in _C_SWAPS:
            for match in re.compile(pattern.encode()).finditer(blank, head.end(), end):
                start, stop = match.span(1)
                text = new or f"!({source[start:stop].decode()})"
                yield Mutation(path, head.group(1).decode(), start, stop, text)


# --- the draw -----------------------------------------------------------------------------------


def sites(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of a file, in the order of their places."""
    if path.endswith(".c"):
        found = list(_c_sites(path, source))
    else:
        visitor = _PythonSites(path, source)
        visitor.visit(ast.parse(source))
        found = visitor.found
    return sorted(found, key=lambda each: (each.start, each.end, each.new))


def drawn(root: Path = ROOT) -> list[Mutation]:
    """Return the mutations of the seed, package by package."""
    chosen: list[Mutation] = []
    for package, count in SHARES:
        candidates: list[Mutation] = []
        for file in sorted((root / package).rglob("*.c" if package == "native/src" else "*.py")):
            if not _SKIPPED_FOLDERS & set(file.parts):
                candidates += sites(str(file.relative_to(root)), file.read_bytes())
        # A generator for each package: a change of one does not change the draw of the others.
        choice = random.Random(f"{SEED} {package}").sample(candidates, count)
        chosen += sorted(choice, key=lambda each: (each.path, each.start))
    return chosen


def main(arguments: list[str]) -> int:
    """Print the draw, or try one of its mutations; return 1 when the mutation survives."""
    mutations = drawn()
    if arguments[:1] != ["try"]:
        for number, each in enumerate(mutations, 1):
            print(f"{number}. {each.describe((ROOT / each.path).read_bytes())}")
        return 0
    mutation = mutations[int(arguments[1]) - 1]
    source = (ROOT / mutation.path).read_bytes()
    print(mutation.describe(source))
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        with workshop.broken(mutation.path, mutation.apply(source).decode()):
            outcome = workshop.run_pytest(arguments[2:], TRY_S)
    print(outcome.text)
    if not outcome.is_sound:
        print("the tests did not run")
        return 2
    print("killed" if outcome.is_red else "survived")
    return 0 if outcome.is_red else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
