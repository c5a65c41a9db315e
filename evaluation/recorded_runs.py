"""The runs that were recorded for this project, read from their folders and simulated."""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

import llmsim
from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.lowering import LoweredGroup

FOLDER = Path(__file__).parent / "recorded" / "h200_vllm_0.24"
HARDWARE, ENGINE = "H200", "vllm-0.24"
LOADS = ("light", "medium", "burst", "long")
HostTimes = Mapping[str, int]
"""`prepare_ns`, `prepare_sequence_ns`, `launch_ns` and `fused_moe_ns`, as in a cluster file."""
ASSUMED_HOST: HostTimes = {
    "prepare_ns": 0,
    "prepare_sequence_ns": 0,
    "launch_ns": 6000,
    "fused_moe_ns": 0,
}
"""What the engine's profile had before it took the times of these runs."""
COMPILING_S, COMPILING_TOKENS = 0.5, 2048
"""A step of fewer tokens that took longer waited for the compiler of its kernels."""


@dataclass(frozen=True)
class Served:
    """One model on one host, and its bundle."""

    folder: str
    title: str
    host: str
    """The machine: each time that a card was at hand it was in another one."""
    utilization: float = 0.9
    profile: bool = False
    model: str = ""
    alike: bool = False
    """Answers of all sequences have the same tokens, and thereby the same experts."""

    @property
    def model_name(self) -> str:
        """A preset, or the config.json beside the runs."""
        return self.model or str(FOLDER / f"{self.folder}.json")


SERVED = (
    Served(
        "llama-3.1-8b",
        "Llama-3.1-8B, bf16",
        "first",
        profile=True,
        model="meta-llama/Llama-3.1-8B",
    ),
    Served("llama-3.1-8b-fp8", "Llama-3.1-8B, fp8 (a scale for each token)", "first"),
    Served("qwen3-32b", "Qwen3-32B, bf16", "second", 0.93, model="Qwen/Qwen3-32B"),
    Served("qwen3-30b-a3b", "Qwen3-30B-A3B, bf16", "second", 0.93, model="Qwen/Qwen3-30B-A3B"),
    Served(
        "qwen3-30b-a3b-fp8",
        "Qwen3-30B-A3B, fp8 (a scale for each token)",
        "second",
        0.93,
        alike=True,
    ),
    Served(
        "qwen3-30b-a3b-third",
        "Qwen3-30B-A3B, bf16, third host",
        "third",
        0.93,
        profile=True,
        model="Qwen/Qwen3-30B-A3B",
    ),
    Served("gpt-oss-20b", "gpt-oss-20b, MXFP4", "third", model="openai/gpt-oss-20b", alike=True),
)


@dataclass(frozen=True)
class Run:
    """A recorded run beside its simulation: milliseconds, tokens per second, and steps."""

    served: Served
    load: str
    meta: dict[str, Any]
    host: HostTimes
    """The times of the host that it was simulated with."""
    real: dict[str, float]
    simulated: dict[str, float]
    compiling: int
    """Recorded steps that waited for the compiler of their kernels."""
    real_steps: pd.DataFrame
    simulated_steps: pd.DataFrame
    real_full_ms: pd.Series
    """Of steps of the whole token budget between two others of it, and simulated."""
    simulated_full_ms: pd.Series
    updates: pd.DataFrame
    """Of recorded decodes: `sequences`, `ms`, and `update_ms`, what taking the tokens of the step
    before took the host.
    """
    launches: pd.DataFrame
    """Of the recorded run: `graphs` and `ms` of the host's time for a step."""
    lone: pd.DataFrame
    """TTFT of prompts that came to an idle engine and were alone: `real` and `simulated`, ms."""


MEAN_TTFT, MEAN_TPOT, THROUGHPUT = "mean_ttft_ms", "mean_tpot_ms", "output_throughput"
METRICS = (MEAN_TTFT, "median_ttft_ms", MEAN_TPOT, "median_tpot_ms", THROUGHPUT)


def simulate(served: Served, load: str, host: HostTimes, **options: Any) -> Run:
    """The run of a load, and the same trace simulated with the recorded engine's limits and these
    times of the host.
    """
    folder, meta = FOLDER / served.folder / load, meta_of(served, load)
    fields = llmsim.Cluster.build(served.model_name, HARDWARE).fields()
    instance = meta["facts"]["instance"]
    fields["engine"] = {"engine_profile": ENGINE, **host, **instance}
    requests = list(rows(folder / "requests.jsonl.gz"))
    result = llmsim.run(fields, meta["options"]["dataset"], **options)
    steps = folder / "steps.jsonl.gz"
    budget = instance["max_num_batched_tokens"]
    return Run(
        served,
        load,
        meta,
        host,
        latencies(requests),
        {name: float(result.summary[name]) for name in METRICS},
        compiling_steps(steps),
        recorded_steps(steps),
        simulated_steps(result.steps),
        recorded_full_steps(steps, budget),
        simulated_full_steps(result.steps, budget),
        recorded_updates(steps),
        recorded_launches(steps, meta["facts"]["largest_graph"]),
        lone_prompts(requests, result.requests),
    )


def meta_of(served: Served, load: str) -> dict[str, Any]:
    """What was written down of the machine and the engine."""
    found: dict[str, Any] = json.loads(
        (FOLDER / served.folder / load / "meta.json").read_text("utf-8")
    )
    return found


def lone_prompts(requests: Sequence[dict[str, Any]], simulated: pd.DataFrame) -> pd.DataFrame:
    """Of the recorded requests whose prompt ran alone, which no constant was made from."""
    found = []
    for number, one in enumerate(requests):
        arrival, first = one["arrival_time"], one["first_token_ts"]
        others = (other for other in requests if other is not one)
        if any(o["arrival_time"] < first and o["last_token_ts"] > arrival for o in others):
            continue
        row = simulated.iloc[number]
        found.append((1e3 * (first - arrival), (row["first_token_ps"] - row["arrival_ps"]) / 1e9))
    return pd.DataFrame(found, columns=["real", "simulated"])


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def latencies(requests: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a log, under the names of a run's summary."""
    ttft = [1e3 * (each["first_token_ts"] - each["arrival_time"]) for each in requests]
    tpot = [
        1e3 * (each["last_token_ts"] - each["first_token_ts"]) / (each["output_toks"] - 1)
        for each in requests
        if each["output_toks"] > 1
    ]
    start = min(each["arrival_time"] for each in requests)
    span = max(each["last_token_ts"] for each in requests) - start
    values = (
        statistics.mean(ttft),
        statistics.median(ttft),
        statistics.mean(tpot),
        statistics.median(tpot),
        sum(each["output_toks"] for each in requests) / span,
    )
    return dict(zip(METRICS, values, strict=True))


def recorded_steps(path: Path) -> pd.DataFrame:
    """Steps that followed another without a pause, as `sequences` (of decodes alone) and `ms`.

    Behind and before a prompt `end` is late by the launch of the next step, so only decodes
    between decodes count.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = [
        (len(step["batch"]), 1e3 * (step["end"] - before["end"]))
        for at, (before, step) in enumerate(pairwise(steps), 1)
        if step["extra"]["scheduled"] < before["end"] and all(decodes[at - 1 : at + 2])
    ]
    return pd.DataFrame(found, columns=["sequences", "ms"])


def recorded_full_steps(path: Path, budget: int) -> pd.Series:
    """Times in ms of steps of the whole token budget between two others of it."""
    steps = list(rows(path))
    ends = pd.Series([1e3 * step["end"] for step in steps])
    tokens = pd.Series([sum(new for new, _ in step["batch"]) for step in steps])
    return between_alike(ends.diff(), tokens == budget)


def simulated_full_steps(steps: pd.DataFrame, budget: int) -> pd.Series:
    """The same of a simulation."""
    return between_alike(steps["end_ps"].diff() / 1e9, steps["tokens"] == budget)


def between_alike(ms: pd.Series, chosen: pd.Series) -> pd.Series:
    """The times of chosen steps with a chosen one on each side."""
    before, after = (chosen.shift(by, fill_value=False) for by in (1, -1))
    return ms[chosen & before & after]


def recorded_updates(path: Path) -> pd.DataFrame:
    """Decodes with decodes around them, how long each lasted, and how long the host took the tokens
    of the step before until it scheduled again.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = []
    for at in range(2, len(steps) - 2):
        before, step, after = steps[at - 1 : at + 2]
        next_start = after["extra"]["scheduled"]
        if all(decodes[at - 2 : at + 3]) and next_start < step["end"]:
            last_ms = 1e3 * (step["end"] - before["end"])
            found.append((len(step["batch"]), last_ms, 1e3 * (next_start - before["end"])))
    return pd.DataFrame(found, columns=["sequences", "ms", "update_ms"])


def compiling_steps(path: Path) -> int:
    """Steps that took far too long for their tokens."""
    steps = list(rows(path))
    ends = [steps[0]["extra"]["scheduled"], *(step["end"] for step in steps)]
    return sum(
        step["end"] - max(before, step["extra"]["scheduled"]) > COMPILING_S
        and sum(new for new, _ in step["batch"]) < COMPILING_TOKENS
        for before, step in zip(ends, steps, strict=False)
    )


def recorded_launches(path: Path, largest_graph: int) -> pd.DataFrame:
    """What the host took for steps with prompts behind decodes, in ms, and at most for decodes
    behind prompts.

    An asynchronous engine of one process schedules the next step when it has launched one and the
    step before has ended. Prompts were launched while the devices still ran; behind a decode the
    engine may also have waited for the prompt in front of it. Steps whose kernels were compiled are
    left out. Up to `largest_graph` tokens a graph is replayed.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = []
    for at in range(2, len(steps) - 1):
        before, step, after = steps[at - 1 : at + 2]
        start, next_start = step["extra"]["scheduled"], after["extra"]["scheduled"]
        host_s = next_start - start
        busy = start < before["end"] and next_start < step["end"]
        if not busy or host_s > COMPILING_S:
            continue
        of_prompts = [not alone for alone in decodes[at - 2 : at + 1]]
        if of_prompts[1:] == [True, False]:
            found.append(("full", 1e3 * host_s))
        elif of_prompts == [False, False, True]:
            tokens = sum(new for new, _ in step["batch"])
            graphs = "piecewise" if tokens <= largest_graph else "none"
            found.append((graphs, 1e3 * host_s))
    return pd.DataFrame(found, columns=["graphs", "ms"])


def decodes_alone(steps: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which steps have decodes alone."""
    return [all(new == 1 for new, _ in step["batch"]) for step in steps]


def simulated_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The same of a simulation."""
    ms = steps["end_ps"].diff() / 1e9
    alone = steps["prefill_tokens"] == 0
    chosen = (
        alone
        & alone.shift(1, fill_value=False)
        & alone.shift(-1, fill_value=False)
        & (steps["schedule_ps"] < steps["end_ps"].shift(1))
    )
    return pd.DataFrame({"sequences": steps["decode_sequences"][chosen], "ms": ms[chosen]})


def recorded_capacity_tokens(served: Served) -> int:
    """Tokens of the blocks that the engine allocated for its KV cache."""
    meta = next((FOLDER / served.folder).glob("*/meta.json"))
    facts = json.loads(meta.read_text("utf-8"))["facts"]
    return int(facts["num_gpu_blocks"] * facts["instance"]["block_size"])


def capacity_tokens(served: Served) -> int:
    """Tokens that the simulator's ledger leaves for the KV cache."""
    group = lowered(served)
    return int(group.ledger.num_blocks * group.engine.block_size)


@cache
def lowered(served: Served) -> LoweredGroup:
    """The model on the recorded card with the recorded limits."""
    fields = llmsim.Cluster.build(served.model_name, HARDWARE).fields()
    fields["engine"] = {
        "engine_profile": ENGINE,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 16384,
        "gpu_memory_utilization": served.utilization,
    }
    path = scratch() / f"{served.folder}.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    words = ["--cluster-config", str(path), "--dataset", "synthetic:n=1,rate=1,input=8,output=2"]
    return prepare(checked_options(words)).lowered.groups[0]


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="recorded-"))
