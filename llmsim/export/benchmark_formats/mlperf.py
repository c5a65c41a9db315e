"""A summary with the names of MLPerf's LoadGen log; it is no submission, and says so."""

from typing import Any

import numpy as np

from llmsim.core import PS_PER_NS
from llmsim.export.benchmark_formats.tables import RunTables, needs_requests
from llmsim.plurals import counted, plural

FEWEST_FOR_P99 = 100
"""Requests below which a 99th percentile is the slowest request."""


def mlperf_summary(tables: RunTables) -> dict[str, Any]:
    """Names of the LoadGen's detail log; times in ns. Raises InputError where none finished."""
    needs_requests(tables)
    summary = tables.summary
    problems = _problems(tables)
    blocks: dict[str, Any] = {
        "format": "names of MLPerf LoadGen; a simulation is no submission",
        "SUT name": f"llmsim {tables.version}, {tables.model}",
        "Scenario": "Server",
        "measurement_method": "simulated",
        "result_validity": "INVALID" if problems else "VALID",
        "invalid_reasons": problems,
        "result_scheduled_samples_per_sec": _scheduled(tables),
        "result_completed_samples_per_sec": summary["request_throughput"],
        "result_token_throughput": summary["output_throughput"],
    }
    for name, column in (("latency", "e2el_ps"), ("first_token_latency", "ttft_ps")):
        blocks |= _latency(f"result_{name}", tables.ps(column))
    tpot = tables.tpot_ps[~np.isnan(tables.tpot_ps)]
    blocks |= _latency("result_time_per_output_token", tpot)
    energy = summary["energy"]
    return blocks | {
        "total_energy_joules": None if energy is None else energy["total_j"],
        "energy_per_token_joules": None if energy is None else energy["j_per_output_token"],
        "output_token_count": summary["total_output_tokens"],
    }


def _latency(name: str, times_ps: "np.ndarray[Any, Any]") -> dict[str, int | None]:
    if not len(times_ps):
        return {f"{name}_mean_ns": None}
    nanoseconds = times_ps / PS_PER_NS
    found = {
        f"{name}_min_ns": nanoseconds.min(),
        f"{name}_max_ns": nanoseconds.max(),
        f"{name}_mean_ns": nanoseconds.mean(),
    }
    for q in (50, 90, 95, 97, 99, 99.9):
        found[f"{name}_{q:.2f}_percentile_ns"] = np.percentile(nanoseconds, q)
    return {key: round(float(value)) for key, value in found.items()}


def _scheduled(tables: RunTables) -> float | None:
    arrivals = tables.ps("arrival_ps")
    span = int(arrivals.max() - arrivals.min())
    return None if span == 0 else (len(arrivals) - 1) * 1e12 / span


def _problems(tables: RunTables) -> list[str]:
    """Why the figures would not count."""
    found = []
    if tables.failed:
        found.append(f"{counted(tables.failed, 'request')} did not finish")
    if len(tables.finished) < FEWEST_FOR_P99:
        ended = len(tables.finished)
        few = plural(ended, "request is", "requests are")
        found.append(f"{ended} {few} too few for a 99th percentile")
    growing = [note for note in tables.summary["notes"] if "load is above" in note]
    return found + growing
