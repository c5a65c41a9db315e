"""Degenerate cases whose answers are known: one server, the closed loop, and what does not depend
on how it is run.
"""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduling.tiny import MS, SCHEDULERS, Options, most_slots, run

FOLDER = Path(__file__).resolve().parent


def poisson(n: int, load: float, seed: int) -> np.ndarray:
    """Arrivals in ms, whole ps, of requests that take one step of 1 ms each."""
    random = np.random.Generator(np.random.PCG64(seed))
    return np.rint(np.cumsum(random.standard_exponential(n)) / load * MS).astype(np.int64)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_one_sequence_at_a_time_is_an_md1_queue(load: float) -> None:
    n = 40_000
    arrival = poisson(n, load, seed=int(load * 100))
    r = run([(a / MS, 1, 1) for a in arrival.tolist()], Options(max_seqs=1)).requests()
    assert (np.abs(r["arrival_ps"] - arrival) <= 1).all()
    # Lindley's recursion, to the picosecond: who comes waits for who is there.
    ends = np.empty(n, np.int64)
    end = 0
    for i, a in enumerate(r["arrival_ps"].tolist()):
        end = max(a, end) + MS
        ends[i] = end
    assert (r["finish_ps"] == ends).all()
    # Pollaczek and Khinchine: mean wait = load / (2 (1 - load)) service times. Batch means give the
    # error of our mean.
    waits = (r["scheduled_ps"] - r["arrival_ps"])[2000:] / MS
    batches = waits[: len(waits) // 38 * 38].reshape(38, -1).mean(axis=1)
    error = float(batches.std(ddof=1) / np.sqrt(38))
    assert abs(float(batches.mean()) - load / (2 * (1 - load))) < 4 * error


def test_littles_law_between_the_gauges_and_the_latencies() -> None:
    """Mean requests in the system, sampled at Poisson times, = throughput x mean time in it."""
    arrival = poisson(30_000, 2.0, seed=3)  # two a step, up to 8 of which run at once
    r = run([(a / MS, 1, 3) for a in arrival.tolist()], Options(max_seqs=8)).requests()
    first, last = int(r["arrival_ps"][0]), int(r["finish_ps"].max())
    looks = np.random.Generator(np.random.PCG64(9)).uniform(first, last, 20_000)
    there = np.searchsorted(np.sort(r["arrival_ps"]), looks, "right") - np.searchsorted(
        np.sort(r["finish_ps"]), looks, "right"
    )
    law = float((r["finish_ps"] - r["arrival_ps"]).sum()) / (last - first)
    error = float(there.std()) / np.sqrt(len(looks))
    assert abs(float(there.mean()) - law) < 4 * error


def digest(scheduler: str) -> str:
    """A run with everything in it, as one hash."""
    random = np.random.Generator(np.random.PCG64(5))
    rows = sorted(
        (int(random.integers(0, 300)), int(random.integers(1, 200)), int(random.integers(1, 40)))
        for _ in range(60)
    )
    options = Options(
        scheduler,
        blocks=80,
        block_size=4,
        caching=scheduler not in ("orca", "static"),
        max_model_len=400,
        budget=400,
        timeout_ms=[float(t) if t > 0 else -1 for t in random.integers(-100, 200, 60)],
        clients=9,
        think_ms=[float(t) for t in random.integers(0, 30, 60)],
        keys=[list(range(1, 1 + tokens // 4)) for _, tokens, _ in rows],
    )
    sim = run(rows, options)  # type: ignore[arg-type]
    columns: dict[str, Any] = {**sim.requests(), **sim.blame(), **sim.steps()}
    return hashlib.sha256(
        b"".join(name.encode() + columns[name].tobytes() for name in sorted(columns))
    ).hexdigest()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_results_do_not_depend_on_threads(scheduler: str) -> None:
    alone = digest(scheduler)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(digest, [scheduler] * 16)) == {alone}


def test_results_do_not_depend_on_the_process() -> None:
    program = "from test_queueing_theory import digest, SCHEDULERS; print(*map(digest, SCHEDULERS))"
    outputs = set()
    for seed in ("0", "4711"):
        path = os.pathsep.join([str(FOLDER), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", program]
        outputs.add(
            subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            ).stdout.strip()
        )
    assert outputs == {" ".join(map(digest, SCHEDULERS))}


@pytest.mark.parametrize("percent", [110, 80, 50, 25, 10, 5])
@pytest.mark.parametrize("scheduler", ["vllm_v1", "sarathi", "sglang", "mlfq", "tensorrt_llm"])
def test_pools_from_more_than_the_need_down_to_a_twentieth(scheduler: str, percent: int) -> None:
    """Of the blocks that all requests at once would take: everybody finishes, or is refused because
    it never fits.
    """
    random = np.random.Generator(np.random.PCG64(percent))
    rows = sorted(
        (int(random.integers(0, 50)), int(random.integers(20, 200)), int(random.integers(5, 60)))
        for _ in range(40)
    )
    need = sum(-(-(i + o) // 4) for _, i, o in rows)
    options = Options(
        scheduler,
        blocks=need * percent // 100 + 1,
        block_size=4,
        max_seqs=40,
        budget=400,
        max_model_len=400,
        caching=True,
        per_token_ms=0.01,
    )
    sim = run(rows, options)  # type: ignore[arg-type]
    r, c, parts = sim.requests(), sim.counters(), sim.blame()
    usable = (options.blocks - 1) * 4
    fits = np.array([most_slots(scheduler, i, o) <= usable for _, i, o in rows])
    assert (r["status"] == np.where(fits, 3, 4)).all() and (
        percent < 100 or c["preemptions"][0] == 0
    )
    assert (r["emitted_tokens"] == np.where(fits, [o for _, _, o in rows], 0)).all()
    latency = (r["finish_ps"] - r["arrival_ps"])[fits]
    assert (sum(parts.values())[fits] == latency).all() and all(
        (part >= 0).all() for part in parts.values()
    )
    assert c["free_blocks"][0] == options.blocks - 1 and c["pool_consistent"].all()
