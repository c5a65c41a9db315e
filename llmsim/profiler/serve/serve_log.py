"""`python -m llmsim.profiler serve-log`: runs a real serving engine on a trace and records what it
did, as ground truth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S, Workload
from llmsim.export.files import check_writable_folder
from llmsim.workload import load_dataset

LONG_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
EngineName = Literal["auto", "vllm", "sglang", "transformers"]
SERVERS = {"vllm": "serve_vllm", "sglang": "serve_sglang"}
"""Engines that serve several traces with one start, with the modules that run them."""


@dataclass(frozen=True)
class Job:
    """One request to replay: its prompt is made of `input_tokens` random ids, its answer forced to
    `output_tokens`.
    """

    request_id: str
    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ServeOptions:
    """The engine, its limits, and where the logs go."""

    model: str
    dataset: str
    output: Path
    engine: EngineName = "auto"
    device: str = "auto"
    dtype: str | None = None
    threads: int = 0
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    kv_tokens: int | None = None
    """Capacity of the KV cache; None: the engine's own choice (vLLM), or all requests at once
    (transformers).
    """
    gpu_memory_utilization: float = 0.9
    tensor_parallel: int = 1
    hardware: str | None = None
    """Name of the device in the cluster file; None: "cpu" or "gpu", to be replaced by that of a
    profile.
    """
    limit: int = 0
    seed: int = 0
    warm_up: int = 8
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of vLLM's AsyncEngineArgs or SGLang's ServerArgs."""
    clock: Literal["wall", "cpu"] = "wall"


@dataclass
class Stamps:
    """What happened to one request, seconds of one monotonic clock; None: it never did."""

    request_id: str
    input_toks: int
    output_toks: int
    arrival: float
    queued: float | None = None
    scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One iteration of the engine: [start, end) in seconds, and (new, cached) tokens of each
    sequence in it.
    """

    start: float
    end: float
    batch: tuple[tuple[int, int], ...]
    model_s: float | None = None
    """Time inside the model's forward pass and the sampler, where the engine tells."""
    extra: dict[str, float] = field(default_factory=dict)
    """Counters of the engine beside the batch."""


@dataclass(frozen=True)
class Log:
    """Everything that an engine's run recorded; `facts` describe the engine for provenance and for
    the simulation.
    """

    engine: str
    stamps: Sequence[Stamps]
    steps: Sequence[Step]
    facts: dict[str, Any]


def serve_log(options: ServeOptions, datasets: Sequence[str] = ()) -> list[tuple[Path, Log]]:
    """Replays the trace of the options on the chosen engine and writes its logs.

    Several `datasets` stand for that trace: an engine serves them one after another with one
    start, and the logs of each lie in a folder of its own, by its number from 1, written when it
    ends. Returns each folder with its log. Raises InputError when no engine can be used.
    """
    check_writable_folder(options.output)
    traces = [replace(options, dataset=dataset) for dataset in datasets or (options.dataset,)]
    if len(traces) > 1:
        traces = [
            replace(trace, output=options.output / str(number))
            for number, trace in enumerate(traces, 1)
        ]
    jobs = [jobs_of(trace.dataset, trace.limit) for trace in traces]
    written: list[tuple[Path, Log]] = []

    def write(log: Log) -> None:
        trace = traces[len(written)]
        write_log(trace, log)
        written.append((trace.output, log))

    engine = _engine(options.engine)
    if engine in SERVERS:
        server = import_module(f"{__package__}.{SERVERS[engine]}")
        server.replay(options, jobs, write)
    else:
        from llmsim.profiler.serve import serve_transformers

        if options.engine_arguments:
            raise InputError(
                "--engine-args: they are vLLM's or SGLang's, and the engine is transformers; leave "
                "them out"
            )
        for each in jobs:
            write(serve_transformers.replay(options, each))
    return written


def jobs_of(dataset: str, limit: int) -> list[Job]:
    """The requests of a trace, by arrival; calls of sessions, which depend on answers,
    are refused.
    """
    workload: Workload = load_dataset(dataset, known_models=(), granularity=0, limit=limit)
    if bool((workload.arrival_ps < 0).any()):
        raise InputError(
            f"{dataset}: the trace has sessions, whose later calls depend on answers; replay "
            "single requests"
        )
    ids = workload.request_id or [str(index) for index in range(len(workload))]
    first = int(workload.arrival_ps.min())
    return [
        Job(
            ids[row],
            (int(workload.arrival_ps[row]) - first) / PS_PER_S,
            int(workload.input_tokens[row]),
            max(1, int(workload.output_tokens[row])),
        )
        for row in range(len(workload))
    ]


def warm_up_jobs(jobs: Sequence[Job], count: int) -> list[Job]:
    """A few short requests that load every code path before the clock counts."""
    return [
        Job(f"warm-up-{i}", 0.0, min(job.input_tokens, 64), 8) for i, job in enumerate(jobs[:count])
    ]


def _engine(wanted: EngineName) -> str:
    from importlib.util import find_spec

    installed = [name for name in ("vllm", "sglang", "transformers") if find_spec(name) is not None]
    if wanted != "auto":
        if wanted not in installed:
            raise InputError(f"--engine {wanted}: the package {wanted} is not installed here")
        return wanted
    servers = [name for name in installed if name in SERVERS]
    if servers:
        import torch

        if torch.cuda.is_available():
            return servers[0]
    if "transformers" in installed:
        return "transformers"
    raise InputError(
        "neither vllm or sglang (with a GPU) nor transformers is installed; "
        'pip install "llmsim[profiler]"'
    )


def write_log(options: ServeOptions, log: Log) -> None:
    """requests.jsonl (readable by `llmsim validate`), steps.jsonl, meta.json and the cluster file
    of the simulation.
    """
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "requests.jsonl").open("w", encoding="utf-8") as stream:
        for each in log.stamps:
            row = {
                "request_id": each.request_id,
                "input_toks": each.input_toks,
                "output_toks": each.output_toks,
                "arrival_time": each.arrival,
                "queued_ts": each.queued,
                "scheduled_ts": each.scheduled,
                "first_token_ts": each.tokens[0],
                "last_token_ts": each.tokens[-1],
                "token_ts": each.tokens,
            }
            stream.write(json.dumps(row) + "\n")
    with (folder / "steps.jsonl").open("w", encoding="utf-8") as stream:
        for step in log.steps:
            stream.write(
                json.dumps({name: value for name, value in asdict(step).items() if value}) + "\n"
            )
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(options).items()
    }
    meta = {
        "engine": log.engine,
        "options": settings,
        "facts": log.facts,
        "summary": summary_of(log),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    if "instance" in log.facts:
        (folder / "cluster.json").write_text(
            json.dumps(cluster_of(options, log), indent=2) + "\n", encoding="utf-8"
        )


def cluster_of(options: ServeOptions, log: Log) -> dict[str, Any]:
    """A cluster file whose scheduler does what the recorded engine did; fill in the hardware's
    profile name.
    """
    kind = "cpu" if log.facts.get("device") == "cpu" else "gpu"
    instance = {
        "model_name": options.model,
        "hardware": options.hardware or kind,
        "npu_mem": {"mem_size": 1024, "mem_bw": 100, "mem_latency": 0},
        "num_npus": options.tensor_parallel,
        "tp_size": options.tensor_parallel,
        "pd_type": None,
        **log.facts["instance"],
    }
    if options.dtype is not None:
        instance["dtype"] = LONG_DTYPES.get(options.dtype, options.dtype)
    memory = {"mem_size": 128, "mem_bw": 100, "mem_latency": 0}
    node = {"num_instances": 1, "cpu_mem": memory, "instances": [instance]}
    return {"num_nodes": 1, "link_bw": 16, "link_latency": 0, "nodes": [node]}


def _mean_latencies(log: Log) -> dict[str, float]:
    """In ms; answers of one token have no time per token."""
    ttft = [each.tokens[0] - each.arrival for each in log.stamps]
    several = [each.tokens for each in log.stamps if len(each.tokens) > 1]
    tpot = [(tokens[-1] - tokens[0]) / (len(tokens) - 1) for tokens in several]
    return {
        "mean_ttft_ms": 1e3 * sum(ttft) / len(ttft),
        "mean_tpot_ms": 1e3 * sum(tpot) / max(1, len(tpot)),
    }


def _host_gaps(log: Log) -> list[float]:
    """Seconds of each step beside the model, of those whose model was timed."""
    return [step.end - step.start - step.model_s for step in log.steps if step.model_s is not None]


def summary_of(log: Log) -> dict[str, float]:
    """Means over requests (ms), throughput, and where the time of the steps went."""
    first_arrival = min(each.arrival for each in log.stamps)
    span = max(each.tokens[-1] for each in log.stamps) - first_arrival
    tokens = sum(len(each.tokens) for each in log.stamps)
    found = {
        **_mean_latencies(log),
        "output_throughput": tokens / span if span > 0 else 0.0,
        "duration_s": span,
        "steps": len(log.steps),
    }
    gaps = _host_gaps(log)
    if gaps:
        found["median_host_gap_ms"] = 1e3 * sorted(gaps)[len(gaps) // 2]
    return found
