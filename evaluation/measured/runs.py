"""Simulates a published measurement with the engine profile of its version and nothing fitted."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.api.cluster import links_in_a_server
from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import LlmsimError
from llmsim.core import PS_PER_S, Results
from llmsim.results.error_bars import has_experts, kind_of, own_device_share
from llmsim.results.requests.metrics import finished_rows
from llmsim.validation.logs.recording import recording_of
from measured.points import TRACE, Point, Skipped

STAND_INS = {
    "zai-org/GLM-4.6": "zai-org/GLM-4.5",
    "moonshotai/Kimi-K2.5 (NVFP4)": "nvidia/Kimi-K2.5-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
    "DeepSeek-R1-0528-FP4-V2": "nvidia/DeepSeek-R1-0528-FP4-v2",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-VL-32B-Instruct-FP8": "Qwen/Qwen3-32B-FP8",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "zai-org/GLM-4.5-Air-FP8": "zai-org/GLM-4.5-Air",
}
"""The preset of a model that pages name otherwise, or one of the same shapes; of Nemotron the
checkpoint that the page ran, of Qwen3-VL the language model, which reads no images here.
"""


@dataclass(frozen=True)
class Simulated:
    """What a run gave: seconds and tokens per second, under the names of `Point.real`."""

    metrics: dict[str, float]
    own_share: float
    """Share of the busy time from tables of the device itself."""
    kind: str
    """What `llmsim.results.error_bars.kind_of` says of the run."""

    def errors(self, point: Point) -> dict[str, float]:
        """Simulated minus real, percent, of every metric that the page states."""
        return {name: 100 * (self.metrics[name] / real - 1) for name, real in point.real.items()}


def simulate(
    point: Point, data: Path, scratch: Path, more: tuple[str, ...] = (), profile: str = ""
) -> Simulated:
    """Runs it; raises Skipped with the reason where it cannot be simulated."""
    if not point.requests:
        raise Skipped("the page does not state how many requests ran")
    cluster = scratch / f"{point.name}.json"
    cluster.write_text(json.dumps(_cluster(point)), encoding="utf-8")
    arguments = [
        "--cluster-config",
        str(cluster),
        "--dataset",
        str(_trace(point, data, scratch)),
        "--cost-source",
        "silicon",
        "--engine-profile",
        profile or profile_of(point),
        *(("--max-concurrency", str(point.concurrency)) if point.concurrency else ()),
        *(("--endpoint", point.endpoint) if point.endpoint else ()),
        *point.options,
        *more,
    ]
    try:
        results = trial(checked_options(arguments))
        found = recording_of(results)
    except LlmsimError as error:
        raise Skipped(str(error)) from error
    if not len(found):
        raise Skipped("no request finished")
    tpot = found.tpot_s[~np.isnan(found.tpot_s)]
    return Simulated(
        {
            "throughput": found.output_throughput,
            "ttft": float(found.ttft_s.mean()),
            "tpot": float(np.median(tpot) if point.median_tpot else tpot.mean()),
        },
        own_device_share(results.time_shares),
        _kind(results, float(found.ttft_s.mean())),
    )


def _kind(results: Results, ttft_s: float) -> str:
    """The kind of published runs that the run belongs to."""
    waited_ps = results.blame["queue_ps"][finished_rows(results.requests)]
    experts = has_experts(one.operator for one in results.time_shares)
    return kind_of(float(waited_ps.mean()) / PS_PER_S, ttft_s, experts=experts)


def profile_of(point: Point) -> str:
    """The engine profile of the published version; an unknown one takes the profile of its time."""
    version = point.version or next(
        (release for month, release in RELEASES.items() if month in point.era), DEFAULT_RELEASE
    )
    return f"{point.engine.lower()}-{version}"


RELEASES = {"2025-04": "0.8.4", "2025-12": "0.13.0"}
"""Month of a page that does not state the version -> the release of vLLM at that time."""
DEFAULT_RELEASE = "0.24.0"


def _cluster(point: Point) -> dict[str, Any]:
    model = STAND_INS.get(point.model, point.model)
    instances = [
        {
            "model_name": model,
            "hardware": point.hardware,
            "pd_type": role,
            **_ranks(point),
        }
        for role in point.pd_types
    ]
    node = {"num_instances": len(instances), "instances": instances}
    node["cpu_mem"] = {"mem_size": 1024, "mem_bw": 512, "mem_latency": 0}
    return {"num_nodes": 1, **links_in_a_server(point.hardware), "nodes": [node]}


def _ranks(point: Point) -> dict[str, Any]:
    """The sizes of a stated layout: "TP", "TP8 EP8", "DP8 EP8", or with experts cut."""
    spread = re.fullmatch(r"(TP|DP)(\d+) EP(\d+)", point.layout)
    if spread is None:
        cut = {"ep_size": 1} if "experts cut" in point.layout else {}
        return {"num_npus": point.devices, "tp_size": point.devices, **cut}
    ranks, experts = int(spread[2]), int(spread[3])
    if spread[1] == "TP":
        return {"num_npus": ranks, "tp_size": ranks, "ep_size": experts}
    return {
        "num_npus": ranks,
        "tp_size": 1,
        "data_parallel_size": ranks,
        "enable_expert_parallel": True,
    }


def _trace(point: Point, data: Path, scratch: Path) -> Path:
    if point.trace:
        return _needed(data / point.trace)
    lengths = point.lengths or _lengths(point, data)
    path = scratch / f"{point.name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for (inputs, outputs), arrival_ns in zip(lengths, _arrivals_ns(point), strict=False):
            row = {"input_toks": inputs, "output_toks": outputs, "arrival_time_ns": arrival_ns}
            file.write(json.dumps(row) + "\n")
    return path


def _arrivals_ns(point: Point) -> Iterator[int]:
    """When the client sends each request: with a rate by a Poisson process, as vLLM's does."""
    if not point.rate_per_s:
        return itertools.repeat(0)
    gaps_s = np.random.default_rng(1).exponential(1 / point.rate_per_s, point.requests)
    return iter(np.cumsum(gaps_s * 1e9).astype(np.int64).tolist())


def _needed(path: Path) -> Path:
    if not path.exists():
        raise Skipped(f"{path.name} is not in the data folder")
    return path


def _lengths(point: Point, data: Path) -> list[tuple[int, int]]:
    """Fixed lengths, or those of a ShareGPT trace scaled to the published means."""
    if not point.sampled:
        wanted = (point.input_tokens, point.output_tokens)
        share = np.random.default_rng(0).uniform(point.spread, 1.0, (point.requests, 2))
        return [(round(a), round(b)) for a, b in (share * wanted).tolist()]
    rows = []
    with _needed(data / TRACE).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            rows.append((row["input_toks"], row["output_toks"]))
    rows = [rows[index % len(rows)] for index in range(point.requests)]
    wanted = (point.input_tokens, point.output_tokens)
    scale = [
        1.0 if math.isnan(mean) else mean * len(rows) / sum(row[side] for row in rows)
        for side, mean in enumerate(wanted)
    ]
    return [
        (max(1, round(inputs * scale[0])), max(1, round(outputs * scale[1])))
        for inputs, outputs in rows
    ]
