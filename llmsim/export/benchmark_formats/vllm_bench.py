"""The JSON of `vllm bench serve --save-result --save-detailed`."""

from typing import Any

import numpy as np

from llmsim.core import PS_PER_S
from llmsim.export.benchmark_formats.tables import RunTables, needs_requests, seconds

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def vllm_bench(tables: RunTables) -> dict[str, Any]:
    """The benchmark's result: its names, seconds per request and milliseconds in statistics.

    Lists have a place for each request of the workload. One that did not finish has no tokens, and
    its status as the error, as the benchmark writes failures.

    Raises InputError where no request finished.
    """
    needs_requests(tables)
    summary = tables.summary
    arrival = tables.requests.column("arrival_ps").drop_null().to_numpy()
    count = len(tables.requests)
    good = summary.get("goodput")
    result: dict[str, Any] = {
        "date": "20260101-000000",
        "endpoint_type": "llmsim",
        "backend": "llmsim",
        "label": None,
        "model_id": tables.model,
        "tokenizer_id": tables.model,
        "num_prompts": len(tables.requests),
        "request_rate": "inf" if not summary["request_throughput"] else _rate(arrival),
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": summary["duration"],
        "completed": summary["completed"],
        "failed": tables.failed,
        "total_input_tokens": summary["total_input_tokens"],
        "total_output_tokens": summary["total_output_tokens"],
        "request_throughput": summary["request_throughput"],
        "request_goodput": None if good is None else good["request_goodput"],
        "output_throughput": summary["output_throughput"],
        "total_token_throughput": summary["total_token_throughput"],
        "max_output_tokens_per_s": _peak_tokens(tables),
        "max_concurrent_requests": _peak_requests(tables),
        "rtfx": 0.0,
        "input_lens": tables.requests.column("input_tokens").to_pylist(),
        "output_lens": tables.of_all(tables.whole("emitted_tokens").tolist(), 0),
        "ttfts": tables.of_all(seconds(tables.ps("ttft_ps")).tolist(), 0.0),
        "itls": tables.of_all(tables.itl_lists(PS_PER_S), []),
        "latencies": tables.of_all(seconds(tables.ps("e2el_ps")).tolist(), 0.0),
        "start_times": [
            None if stamp is None else (stamp - tables.start_ps) / PS_PER_S
            for stamp in tables.requests.column("arrival_ps").to_pylist()
        ],
        "queue_times": [0.0] * count,
        "generated_texts": [""] * count,
        "errors": [
            "" if status == "finished" else status
            for status in tables.requests.column("status").to_pylist()
        ],
    }
    return result | {
        f"{statistic}_{name}_ms": summary[f"{statistic}_{name}_ms"]
        for name in LATENCIES
        for statistic in STATISTICS
    }


def _rate(arrival_ps: "np.ndarray[Any, np.dtype[np.int64]]") -> float | str:
    """Requests per second between the first and the last arrival."""
    span = int(arrival_ps.max() - arrival_ps.min())
    return (len(arrival_ps) - 1) * PS_PER_S / span if span else "inf"


def _peak_tokens(tables: RunTables) -> float:
    """Most output tokens within one of the seconds from the first arrival."""
    offsets, gaps = tables.itl
    tokens = tables.whole("emitted_tokens")
    first = tables.ps("first_token_ps")
    since = np.concatenate(([0], np.cumsum(gaps)))
    at = np.repeat(first, np.maximum(tokens - 1, 0)) + (
        since[1:] - np.repeat(since[offsets[:-1]], np.diff(offsets))
    )
    every = np.concatenate((first, at)) - tables.start_ps
    return float(np.bincount(every // PS_PER_S).max())


def _peak_requests(tables: RunTables) -> int:
    """Most requests in the system at once."""
    begin, end = tables.ps("arrival_ps"), tables.ps("finish_ps")
    times = np.concatenate((begin, end))
    change = np.concatenate((np.ones(len(begin), int), -np.ones(len(end), int)))
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max())
