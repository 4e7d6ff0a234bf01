"""One event loop for the broker's code: no test, rig or benchmark runs it on another.

asyncio's own loop hides faults: its transports are `asyncio.Transport`, uvloop's are not, and an
assertion about that broke the HTTP port of every broker that had too many connections.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from vespiary_broker.app import event_loop
from vespiary_testkit import product_loop

ROOT = Path(__file__).resolve().parents[2]

CHOICE = re.compile(
    r"\basyncio\.(?:run\b|Runner\(|new_event_loop\b|get_event_loop\b|set_event_loop_policy\b"
    r"|\w*SelectorEventLoop\b|\w*EventLoopPolicy\b)"
    r"|\bfrom (?:asyncio|uvloop)\b|\bimport uvloop\b|\bimport asyncio as\b|IsolatedAsyncioTestCase"
)
"""Chooses an event loop, in code or in the text of a program that a test starts."""

EXCEPTIONS = {
    "broker/vespiary_broker/app/event_loop.py": "the broker's choice",
    "operator/vespiary_operator/": "the operator's choice: asyncio's loop, kopf's included",
    "tests/unit/vespiary_operator/": "run the operator's code on the operator's loop",
    "tests/vespiary_testkit/virtual_time.py": "uvloop's clock cannot be replaced",
    "tests/e2e/test_api_faults.py": "stands for the API server: none of our code is in it",
    "tests/vespiary_testkit/journal_process.py": "makes io_uring_enter fail, which libuv calls too",
    "tests/integration/test_advice_python.py": "runs aiomqtt as its users do: on asyncio's loop",
    "tests/integration/test_mqtt_clients.py": "runs aiomqtt as its users do: on asyncio's loop",
    "tests/repo/test_late.py": "asks whether asyncio itself is late",
    "tests/repo/test_event_loop.py": "names what it looks for",
}
"""Files and folders that choose an event loop, and why; may only shrink."""


def choosers() -> dict[str, str]:
    """Return the Python files that choose an event loop, with the first choice."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.exists() and (match := CHOICE.search(path.read_text())):
            found[name] = match[0]
    return found


@pytest.mark.ci
def test_nothing_else_chooses_an_event_loop() -> None:
    found = choosers()
    used = {each for each in EXCEPTIONS for name in found if name.startswith(each)}
    others = {name: text for name, text in found.items() if not name.startswith(tuple(EXCEPTIONS))}
    assert not others, "use vespiary_testkit.product_loop, or vespiary_broker.app.event_loop"
    assert used == set(EXCEPTIONS), "an exception is no longer needed"


@pytest.mark.parametrize(
    "text",
    [
        "asyncio.run(main())",
        "runner: Callable[[Any], None] = asyncio.run,",
        "with asyncio.Runner() as runner:",
        "loop = asyncio.new_event_loop()",
        "from asyncio import run",
        "import uvloop",
        "class Test(unittest.IsolatedAsyncioTestCase):",
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())",
    ],
)
def test_a_choice_is_recognized(text: str) -> None:
    assert CHOICE.search(text)


@pytest.mark.parametrize(
    "text", ["asyncio.run_coroutine_threadsafe(x, y)", "asyncio.get_running_loop()"]
)
def test_what_takes_the_loop_that_runs_is_no_choice(text: str) -> None:
    assert not CHOICE.search(text)


def test_the_loop_is_uvloop_in_tests_too() -> None:
    async def module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert event_loop.run(module()) == product_loop.run(module()) == "uvloop"


def test_a_callback_that_raises_fails_the_test() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(int, "no number")
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="no number"):
        product_loop.run(main())


def test_a_protocol_that_raises_fails_the_test() -> None:
    class Failing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()
            raise AssertionError("a protocol's failure")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Failing, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await reader.read()
        writer.close()
        server.close()
        await server.wait_closed()

    with pytest.raises(AssertionError, match="a protocol's failure"):
        product_loop.run(main())
