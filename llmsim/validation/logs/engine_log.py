"""Stamps of vLLM's engine, one line for each request."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.plurals import counted
from llmsim.validation.logs.fields import Rows, count_of, number_at, partitioned
from llmsim.validation.logs.findings import CLOCK_GRAIN_S, failed_findings
from llmsim.validation.logs.recording import (
    UNKNOWN,
    FailedRequests,
    Finding,
    Float64,
    Recording,
)
from llmsim.validation.logs.units import check_clocks

_STAMPS = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


def read_engine_log(path: Path, rows: Rows) -> Recording:
    """Stamps of vLLM's engine: `arrival_time` in epoch seconds, the others in seconds of a
    monotonic clock.

    The clocks are aligned by the smallest queued_ts - arrival_time: the quickest way from client to
    queue counts as 0. A request without a first or a last token (null) failed, and is left out with
    a finding.
    """
    named = [
        (str(row.get("request_id", index)), line, row) for index, (line, row) in enumerate(rows)
    ]
    good, failed = partitioned(named, lambda one: _has_tokens(one[2]))
    if not good:
        raise InputError(
            f"{path}: none of its {counted(len(rows), 'request')} has a first and a last token",
            file=str(path),
        )
    stamps = {
        name: np.array([number_at(path, line, row, name) for _, line, row in good])
        for name in _STAMPS
    }
    check_clocks(path, stamps)
    offset = float(np.min(stamps["queued_ts"] - stamps["arrival_time"]))
    arrival = stamps["arrival_time"] + offset
    findings = [*failed_findings(len(failed), len(rows)), *_order(arrival, stamps)]
    return Recording(
        source=str(path),
        kind="vLLM engine log",
        request_id=tuple(name for name, _, _ in good),
        arrival_s=arrival - arrival.min(),
        ttft_s=stamps["first_token_ts"] - arrival,
        latency_s=stamps["last_token_ts"] - arrival,
        input_tokens=np.array(
            [
                count_of(f"{path}:{line}: input_toks", row["input_toks"])
                if "input_toks" in row
                else UNKNOWN
                for _, line, row in good
            ],
            dtype=np.int64,
        ),
        output_tokens=np.array(
            [
                count_of(f"{path}:{line}: output_toks", row.get("output_toks"))
                for _, line, row in good
            ],
            dtype=np.int64,
        ),
        findings=tuple(findings),
        failed=FailedRequests.of(
            ((name, row.get("arrival_time")) for name, _, row in failed),
            float(stamps["arrival_time"].min()),
        ),
    )


def _has_tokens(row: dict[str, Any]) -> bool:
    """Whether a request of the engine's log has a first and a last token."""
    return all(row.get(name, 0) is not None for name in _STAMPS[2:])


def _order(arrival: Float64, stamps: dict[str, Float64]) -> list[Finding]:
    chain = (("arrival", arrival), *((name, stamps[name]) for name in _STAMPS[1:]))
    found = []
    for (earlier, before), (later, after) in pairwise(chain):
        wrong = int((after < before - CLOCK_GRAIN_S).sum())
        if wrong:
            where = f"{counted(wrong, 'request')}"
            sentence = f"the log's clocks disagree: {later} is before {earlier} in {where}"
            found.append(Finding("clocks", True, sentence))
    return found
