"""What clients are told: rounding in the CSV, hand-overs among other requests, tokens that take
time on their way.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmsim.core import KvTransferColumns, Results, Status
from llmsim.export.csv import write_csv
from llmsim.results.invariants import _transfers
from llmsim.results.requests.detokenization_delay import with_output_processing
from llmsim.results.summary import summary


def test_tpot_is_the_nearest_nanosecond_halves_up(
    build: Callable[..., Results], tmp_path: Path
) -> None:
    write_csv(build(200, finished_share=1.0), tmp_path / "o.csv")
    with (tmp_path / "o.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["TPOT"]]
    steps = [
        (int(row["latency"]) - int(row["TTFT"]), int(row["output"]) - 1, int(row["TPOT"]))
        for row in rows
    ]
    assert all(-count <= 2 * (tpot * count - total) <= count for total, count, tpot in steps)
    assert all(2 * (tpot * count - total) > -count for total, count, tpot in steps)
    assert any(total % count * 2 > count for total, count, _ in steps), "some are rounded up"


def handed_over(results: Results, rows: list[int]) -> Results:
    """The same, with those rows handed over from group 1: four bytes for each token of their
    prompts, in order.
    """
    r, n = results.requests, len(results.workload)
    of = np.zeros(n, dtype=bool)
    of[rows] = True
    tokens = results.workload.input_tokens.astype(np.int64)
    return replace(
        results,
        kv_transfers=KvTransferColumns(
            prefill_group=np.where(of, 1, -1).astype(np.int16),
            prefill_end_ps=np.where(of, r.scheduled_ps, -1),
            kv_reserved_ps=np.where(of, r.scheduled_ps, -1),
            kv_landed_ps=np.where(of, r.scheduled_ps + 7, -1),
            decode_scheduled_ps=np.where(of, r.scheduled_ps + 7, -1),
            decode_cached_tokens=np.zeros(n, dtype=np.int32),
            kv_transfer_bytes=np.where(of, 4 * tokens, 0),
            kv_due_bytes=np.where(of, 4 * tokens, 0),
        ),
        counters={**results.counters, "handed_over": np.array([len(rows), 0])},
    )


def test_only_what_was_handed_over_counts_as_transfer(build: Callable[..., Results]) -> None:
    results = handed_over(build(40, finished_share=1.0), [3, 5, 8])
    found = summary(results, {})["kv_transfer"]
    assert found["requests"] == 3 and found["mean_transfer_ms"] == pytest.approx(7e-9, abs=1e-6)
    assert found["bytes"] == 4 * int(results.workload.input_tokens[[3, 5, 8]].sum())


def test_broken_transfers_are_found(build: Callable[..., Results]) -> None:
    results = handed_over(build(40, finished_share=1.0), [3, 5, 8])
    h = results.kv_transfers
    assert h is not None and _transfers(results) == "ok"
    early, odd = h.decode_scheduled_ps.copy(), h.kv_transfer_bytes.copy()
    early[5] -= 8
    odd[8] += 1
    assert "request 5 was decoded before" in _transfers(
        replace(results, kv_transfers=replace(h, decode_scheduled_ps=early))
    )
    assert "of request 8" in _transfers(
        replace(results, kv_transfers=replace(h, kv_transfer_bytes=odd))
    )
    missing = {**results.counters, "handed_over": np.array([2, 0])}
    assert "the groups count 2" in _transfers(replace(results, counters=missing))


def test_time_beside_the_engine_is_part_of_the_latency_of_those_that_finished(
    build: Callable[..., Results],
) -> None:
    before = build(60)
    after = with_output_processing(before, 1000)
    done = before.requests.status == Status.FINISHED
    assert done.any() and not done.all()
    emitted = before.requests.emitted_tokens
    assert (
        after.requests.first_token_ps - before.requests.first_token_ps == np.where(done, 1000, 0)
    ).all()
    assert (
        after.requests.finish_ps - before.requests.finish_ps == np.where(done, 1000 * emitted, 0)
    ).all()
    parts = sum(after.blame.values())
    assert (parts[done] == (after.requests.finish_ps - after.requests.arrival_ps)[done]).all()
    running = replace(
        before, requests=replace(before.requests, emitted_tokens=np.maximum(emitted, 1))
    )
    shifted = with_output_processing(running, 1000)
    assert (sum(shifted.blame.values())[~done] == sum(running.blame.values())[~done]).all()
