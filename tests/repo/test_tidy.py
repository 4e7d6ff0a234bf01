"""House rules that a machine can check: sizes, names, and what must not be in a file.

The lists of exceptions may only shrink; a test fails when an entry is no longer needed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FUNCTION_LINES_MAX = 70

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "stuff"}

LONG_FUNCTIONS: set[str] = set()
"""`path:function` above the limit; may only shrink."""

SOURCE_FOLDERS = ("broker", "native", "crds", "operator", "pipeline", "tests", "benchmarks")
OURS = (
    "vespiary_broker",
    "vespiary_codec",
    "vespiary_native",
    "vespiary_spec",
    "vespiary_operator",
    "vespiary_pipeline",
)

# Written in two halves, so that this file does not contain what it looks for.
LEFT_OVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot)/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:[\w-]+\.)*(?:artifactory|nexus|jfrog)[\w.-]*\.[a-z]{2,}\b"
    r"|--(?:extra-)?index-url|\bPIP_INDEX_URL\b",
    re.IGNORECASE,
)


@cache
def files() -> tuple[Path, ...]:
    """Return the files under version control, and those about to be, that are present."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = sorted(set(filter(None, listed.stdout.decode().split("\0"))))
        return tuple(ROOT / name for name in names if (ROOT / name).is_file())
    hidden = (".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "data")
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not set(hidden) & set(path.relative_to(ROOT).parts)
    )


def texts() -> Iterator[tuple[str, str]]:
    for path in files():
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or another binary file


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    for name, text in texts():
        if name.startswith(SOURCE_FOLDERS) and name.endswith(suffixes):
            yield name, text


def python_functions(name: str, text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield functions of a C file and their lines, from the first line of the head to the `}`."""
    lines = text.splitlines()
    head = ""
    begin = 0
    name = ""
    for number, line in enumerate(lines, 1):
        if name:
            if line.startswith("}"):
                yield name, number - begin + 1
                name = head = ""
            continue
        if not line.strip() or line.startswith(("#", "}", "/", " *")) or line.endswith(";"):
            head = ""
            continue
        begin = begin if head else number
        head += " " + line
        match = re.match(r"^ (?!typedef|struct \w+ {|enum)[^=({]*?(\w+)\s*\(.*\)\s*{$", head)
        name = match.group(1) if match else ""


def test_files_are_found() -> None:
    found = {name for name, _ in texts()}
    assert {"pyproject.toml", "Makefile", "crds/vespiary_spec/errors.py"} <= found
    assert not any(".venv" in name for name in found)


@pytest.mark.ci
def test_functions_are_short() -> None:
    long = set()
    for name, text in sources(".py"):
        long |= {
            f"{name}:{function}"
            for function, lines in python_functions(name, text)
            if lines > FUNCTION_LINES_MAX
        }
    for name, text in sources(".c"):
        long |= {
            f"{name}:{function}"
            for function, lines in c_functions(text)
            if lines > FUNCTION_LINES_MAX
        }
    assert long - LONG_FUNCTIONS == set(), f"split these (at most {FUNCTION_LINES_MAX} lines)"
    assert LONG_FUNCTIONS - long == set(), "these are short enough: take them off the list"


def test_c_functions_are_seen() -> None:
    text = (
        "static int first(int a)\n{\n    return a;\n}\n\nvoid\nsecond(void)\n{\n    first(1);\n}\n"
    )
    assert list(c_functions(text)) == [("first", 4), ("second", 5)]


def test_modules_are_named_for_what_they_hold() -> None:
    vague = {
        name
        for name, _ in sources(".py", ".c", ".h")
        if set(Path(name).with_suffix("").parts) & VAGUE_NAMES
    }
    assert vague == set()


def test_commands_print_through_the_module_that_escapes() -> None:
    around = {
        name
        for name, text in sources(".py")
        if name.startswith("broker/vespiary_broker/cli/")
        and re.search(r"click\.s?echo\(|(?<![\w.])print\(", text)
    }
    assert around == {"broker/vespiary_broker/cli/terminal.py"}, "use terminal.echo"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        (LEFT_OVERS, "finish it, or write an issue"),
        (MACHINE_PATHS, "paths of one machine have no place in the repository"),
        (REGISTRY_HOSTS, "hosts of package registries have no place in the repository"),
    ],
)
def test_no_file_contains_what_it_must_not(pattern: re.Pattern[str], rule: str) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], rule


def patched_targets(name: str, text: str) -> Iterator[str]:
    """Yield uses of unittest's patching on our own code."""
    if "patch" not in text:
        return
    tree = ast.parse(text, name)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        if not re.search(r"(^|\.)(mock\.)?patch(\.object|\.dict|\.multiple)?$", call):
            continue
        if "mock" in text and node.args:
            target = ast.unparse(node.args[0])
            if target.strip("'\"").startswith(OURS) or call.endswith(".object"):
                yield f"{name}:{node.lineno}: {call}({target})"


@pytest.mark.ci
def test_our_own_code_is_never_mocked() -> None:
    found = [use for name, text in sources(".py") for use in patched_targets(name, text)]
    assert found == [], "write a named fake instead (tests/vespiary_testkit)"


def test_mocking_is_seen() -> None:
    text = "from unittest import mock\nmock.patch('vespiary_spec.units.parse_size')\n"
    assert list(patched_targets("t.py", text)) == [
        "t.py:2: mock.patch('vespiary_spec.units.parse_size')"
    ]


def bare_handlers(name: str, text: str) -> Iterator[str]:
    """Yield handlers that catch everything, or that swallow what they catch without a word."""
    if "except" not in text:
        return
    for node in ast.walk(ast.parse(text, name)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield f"{name}:{node.lineno}: bare except"
        elif ast.unparse(node.type) in ("Exception", "BaseException"):
            lines = text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]
            is_silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            if is_silent and not any("#" in line for line in lines):
                yield f"{name}:{node.lineno}: swallows every exception without a reason"


@pytest.mark.ci
def test_no_exception_is_swallowed() -> None:
    found = [use for name, text in sources(".py") for use in bare_handlers(name, text)]
    assert found == []


@pytest.mark.ci
def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, text in sources(".py")
        if not name.startswith("tests/")
        and text.strip()
        and ast.get_docstring(ast.parse(text, name)) is None
    ]
    assert silent == []
