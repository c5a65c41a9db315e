"""Compares a simulated run with a recorded serving log, request by request.

usage: python evaluation/compare_log.py LOG.jsonl OUTPUT.csv [--skip-seconds 2]

LOG has one JSON object per request: request_id "<anything>-<row>", arrival_time (epoch s), queued_ts, first_token_ts,
last_token_ts (monotonic s), output_toks. The clocks are aligned by the smallest queued_ts - arrival_time. OUTPUT is the
CSV of `main.py --output`. Errors are simulated minus real; paired figures leave out requests that arrived in the first
seconds, where the real engine is still cold.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[np.float64]]
METRICS = ("ttft", "tpot", "latency")
PERCENTILES = (50, 90, 95, 99)


def read_log(path: Path) -> Columns:
    """Latencies of the real run in seconds, by row of the trace; `arrival` from the first one."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows.sort(key=lambda row: int(str(row["request_id"]).rsplit("-", 1)[-1]))
    column = {name: np.array([row[name] for row in rows], float) for name in rows[0] if name != "request_id"}
    offset = np.min(column["queued_ts"] - column["arrival_time"])
    arrival = column["arrival_time"] + offset
    return _derived(arrival, column["first_token_ts"], column["last_token_ts"], column["output_toks"])


def read_output(path: Path) -> Columns:
    """The same columns of the simulated run."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = sorted(csv.DictReader(stream), key=lambda row: int(row["request id"].rsplit("-", 1)[-1]))
    arrival = np.array([int(row["arrival"]) for row in rows]) / 1e9
    first = arrival + np.array([int(row["TTFT"]) for row in rows]) / 1e9
    last = np.array([int(row["end_time"]) for row in rows]) / 1e9
    return _derived(arrival, first, last, np.array([int(row["output"]) for row in rows], float))


def _derived(
    arrival: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64], tokens: NDArray[np.float64]
) -> Columns:
    return {
        "arrival": arrival - arrival.min(),
        "ttft": first - arrival,
        "tpot": (last - first) / np.maximum(tokens - 1, 1),
        "latency": last - arrival,
        "tokens": tokens,
        "makespan": np.array([last.max() - arrival.min()]),
    }


def compare(real: Columns, simulated: Columns, skip_seconds: float) -> dict[str, float]:
    """Relative errors in percent, by name; `paired_*` are mean absolute percentage errors over single requests."""
    errors: dict[str, float] = {}
    warm = real["arrival"] >= skip_seconds
    for name in METRICS:
        a, b = real[name], simulated[name]
        errors[f"mean_{name}"] = _percent(b.mean(), a.mean())
        for p in PERCENTILES:
            errors[f"p{p}_{name}"] = _percent(float(np.percentile(b, p)), float(np.percentile(a, p)))
        paired = 100 * np.abs(b[warm] - a[warm]) / a[warm]
        errors[f"paired_mape_{name}"] = float(paired.mean())
        errors[f"paired_median_{name}"] = float(np.median(paired))
    throughput = [run["tokens"].sum() / run["makespan"][0] for run in (simulated, real)]
    errors["output_throughput"] = _percent(*throughput)
    errors["makespan"] = _percent(simulated["makespan"][0], real["makespan"][0])
    return errors


def _percent(simulated: float, real: float) -> float:
    return 100 * (simulated / real - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--skip-seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    real, simulated = read_log(arguments.log), read_output(arguments.output)
    if len(real["ttft"]) != len(simulated["ttft"]):
        raise SystemExit(f"the log has {len(real['ttft'])} requests, the output {len(simulated['ttft'])}")
    for name, error in compare(real, simulated, arguments.skip_seconds).items():
        print(f"{name:24} {error:+8.2f} %")


if __name__ == "__main__":
    main()
