"""The endpoint's timer: once for each `set`, and early enough."""

import asyncio
import time

import pytest

from llmsim.endpoint.engine import timer
from llmsim.endpoint.engine.timer import Timer


async def fired(sets: list[float], wait_s: float) -> list[float]:
    """When it fires, from the last `set` on."""
    times: list[float] = []
    began = time.monotonic()
    one = Timer(asyncio.get_running_loop(), lambda: times.append(time.monotonic() - began))
    for seconds in sets:
        one.set(seconds)
    await asyncio.sleep(wait_s)
    one.cancel()
    return times


@pytest.mark.parametrize("has_file", [True, False])
def test_a_timer_fires_once_for_the_last_time_that_was_set(
    has_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_file:
        monkeypatch.setattr(timer, "_timer_file", lambda: None)
    (only,) = asyncio.run(fired([0.01, 0.02, 0.1], 0.3))
    assert only >= 0.1


@pytest.mark.parametrize("has_file", [True, False])
def test_a_timer_that_is_cancelled_does_not_fire(
    has_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_file:
        monkeypatch.setattr(timer, "_timer_file", lambda: None)

    async def cancelled() -> list[int]:
        calls: list[int] = []
        one = Timer(asyncio.get_running_loop(), lambda: calls.append(1))
        one.set(0.02)
        one.cancel()
        await asyncio.sleep(0.1)
        return calls

    assert asyncio.run(cancelled()) == []


def test_it_is_not_late_by_whole_milliseconds() -> None:
    """The best of many: a machine that is busy makes each of them late."""
    late = min(asyncio.run(fired([0.0002], 0.01))[0] for _ in range(20))
    assert late < 0.001 or timer._timer_file() is None
