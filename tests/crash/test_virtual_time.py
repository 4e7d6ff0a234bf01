"""The event loop of the power cuts: it is fast, it tells of defects, and it comes to an end."""

from __future__ import annotations

import asyncio
import time

import pytest

from vespiary_testkit.virtual_time import run_virtual

pytestmark = pytest.mark.verify


def test_sleeps_take_virtual_seconds_alone() -> None:
    async def main() -> float:
        await asyncio.sleep(300)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(300, rel=1e-3)


def test_a_callback_that_raises_ends_the_workload(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: {}["a defect"])
        await asyncio.Event().wait()

    with pytest.raises(KeyError, match="a defect"):
        run_virtual(main())
    assert "Exception in callback" in caplog.text


def test_a_wait_for_what_never_comes_ends() -> None:
    """Beside what looks at something now and then, and so keeps the clock going."""

    async def main() -> None:
        def look() -> None:
            asyncio.get_running_loop().call_later(0.5, look)

        look()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtual(main())


def test_a_sleep_shorter_than_the_clock_can_show_comes_to_an_end() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(100)
        begun_s = loop.time()
        while loop.time() == begun_s:  # noqa: ASYNC110 (the clock is what is tested)
            await asyncio.sleep(1e-17)

    run_virtual(wait())


def test_the_clock_waits_for_a_thread() -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(100, lambda: None)
        await asyncio.to_thread(time.sleep, 0.05)
        return loop.time()

    assert run_virtual(wait()) < 1
