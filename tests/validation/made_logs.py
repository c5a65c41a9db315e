"""Runs `llmsim run` on a small deployment and writes what came out as a real server would have
logged it.
"""

import csv
import json
from pathlib import Path
from typing import Any

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TP4 = ROOT / "cluster_config" / "h100_llama31_70b_tp4.json"
TRACE = "synthetic:n=60,rate=8,input=lognormal:300,output=lognormal:60,seed=5"


def run_arguments(*options: object, cluster: Path = CLUSTER, dataset: object = TRACE) -> list[str]:
    return [
        str(o)
        for o in (
            "--cluster-config",
            cluster,
            "--dataset",
            dataset,
            "--cost-source",
            "roofline",
            *options,
        )
    ]


def simulate(*options: object, cluster: Path = CLUSTER, dataset: object = TRACE) -> None:
    assert run_main(run_arguments(*options, cluster=cluster, dataset=dataset)) == 0


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return sorted(rows, key=lambda row: int(row["request id"]))


def write_engine_log(rows: list[dict[str, str]], path: Path, **changes: Any) -> Path:
    """The rows of a CSV as the log of a vLLM engine: arrivals in epoch seconds, the rest on a
    monotonic clock.
    """
    lines = []
    for row in rows:
        arrival = int(row["arrival"])
        line = {
            "request_id": f"bench-{row['request id']}",
            "input_toks": int(row["input"]),
            "output_toks": int(row["output"]),
            "arrival_time": 1_700_000_000 + arrival / 1e9,
            "queued_ts": 500 + arrival / 1e9,
            "first_token_ts": 500 + (arrival + int(row["TTFT"])) / 1e9,
            "last_token_ts": 500 + int(row["end_time"]) / 1e9,
        }
        lines.append(json.dumps(line | changes))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
