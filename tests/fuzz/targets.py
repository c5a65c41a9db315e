"""Every reader of a file or a specification that a user gives, with sound samples of
what it reads.
"""

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from package import PRESETS

from fuzz.mutators import Mutator, mutated

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "workload" / "samples"
LLAMA = "meta-llama/Llama-3.1-8B"


@dataclass(frozen=True)
class Target:
    """One reader. `read` gets a folder and the damaged bytes, and raises what the reader raises."""

    name: str
    samples: Callable[[], Sequence[bytes]]
    read: Callable[[Path, bytes], object]
    damage: Mutator = mutated
    slow: bool = False
    """An input takes several milliseconds, so that a test draws fewer."""


TARGETS: dict[str, Target] = {}


def target(
    name: str,
    samples: Callable[[], Sequence[bytes]],
    *,
    damage: Mutator = mutated,
    slow: bool = False,
) -> Callable[[Callable[[Path, bytes], object]], Callable[[Path, bytes], object]]:
    """Registers the function below it as the reader of a kind of file."""

    def register(read: Callable[[Path, bytes], object]) -> Callable[[Path, bytes], object]:
        TARGETS[name] = Target(name, samples, read, damage, slow)
        return read

    return register


def encoded(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def text_of(data: bytes) -> str:
    """As Python gives an argument of the command line that is not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


# -------------------- traces of requests


def trace_samples(*stems: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [
        path.read_bytes() for path in sorted(SAMPLES.iterdir()) if path.name.startswith(stems)
    ]


TRACES = {
    "llmservingsim": ("llmservingsim",),
    "bailian": ("bailian",),
    "tracelab": ("tracelab",),
    "aiperf": ("aiperf",),
    "weka": ("weka",),
    "vllm-bench": ("vllm_bench",),
    "sharegpt": ("sharegpt", "wildchat", "openai_messages"),
    "mooncake": ("mooncake", "servegen_batch"),
    "azure": ("azure",),
    "burstgpt": ("burstgpt",),
    "vidur": ("vidur", "frontier"),
    "csv": ("servegen.csv", "splitwise"),
    "jsonl": ("openai_log", "openai_batch_output"),
    "openai": ("openai_batch.jsonl", "vllm_custom"),
}


def _trace_reader(format_name: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, data: bytes) -> object:
        from llmsim.workload.dataset import load_dataset
        from llmsim.workload.formats import read_trace
        from llmsim.workload.options import TraceOptions

        path = written(folder, "trace", data)
        if data[:1] != b"\x00" and len(data) % 3:
            return read_trace(
                path, known_models=(), granularity=16, options=TraceOptions(format=format_name)
            )
        return load_dataset(
            str(path),
            known_models=("m", "n") if len(data) % 11 == 7 else (),
            granularity=len(data) % 17,
        )

    return read


for _name, _stems in TRACES.items():
    target(f"trace.{_name}", trace_samples(*_stems))(_trace_reader(_name))


@cache
def _parquet_traces() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [
        pa.table(
            {
                "timestamp_start_unix_ms": [1.0, 2.0, 5.5],
                "input_tokens": [5, 6, 7],
                "output_tokens": [1, 2, 3],
                "total_hashes": [[1, 2], [1, 3], None],
                "block_size": [64, 64, None],
                "provided_session_id": ["a", None, "b"],
            }
        ),
        pa.table(
            {
                "conversations": [
                    [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]
                ]
                * 2,
                "id": ["a", "b"],
            }
        ),
    ]
    made = []
    for table in tables:
        stream = io.BytesIO()
        pq.write_table(table, stream, compression="none")
        made.append(stream.getvalue())
    stream = io.BytesIO()
    with pa.ipc.new_file(stream, tables[0].schema) as writer:
        writer.write_table(tables[0])
    return [*made, stream.getvalue()]


@target("trace.parquet", _parquet_traces)
def _read_parquet_trace(folder: Path, data: bytes) -> object:
    from llmsim.workload.formats import read_trace

    return read_trace(written(folder, "trace", data), known_models=(), granularity=16)


@target("trace.inspect", trace_samples(""), slow=True)
def _inspect(folder: Path, data: bytes) -> object:
    return command("trace", "inspect", str(written(folder, "trace", data)))


@target("trace.convert", trace_samples(""), slow=True)
def _convert(folder: Path, data: bytes) -> object:
    out = folder / "converted"
    out.unlink(missing_ok=True)
    form = ("llmservingsim", "mooncake")[len(data) % 2]
    try:
        return command(
            "trace", "convert", str(written(folder, "trace", data)), str(out), "--format", form
        )
    except Refused:
        assert not out.exists(), "a refused input left an output"
        raise


# -------------------- what a user types as a text

TRACE_TEXTS = (
    "trace:@,speedup=2,limit=3",
    "trace:@,window=0-10,sample=0.5,seed=3",
    "trace:@,rate=5,failures=keep",
    "trace:@,turns=first,block=16",
    "trace:@,format=csv,columns=timestamp|input_tokens|output_tokens,unit=ms",
    "trace:@,window=-60",
    "trace:@,speedup=1e-300",
    "trace:@,rate=1e-300",
)
LENGTHS = (
    "lognormal:220:cv=2:min=2:max=900",
    "lognormal:5:sigma=1",
    "zipf:1.2:min=1:max=50",
    "pareto:1.2:min=4:max=160",
    "uniform:1-30",
    "uniform:min=1:max=30",
    "exponential:30",
    "fixed:3",
    "7",
)
ARRIVALS = (
    "rate=10",
    "rate=10,arrivals=gamma:cv=2",
    "rate=5,arrivals=fixed",
    "arrivals=burst:size=5:every_s=15",
    "rate=3,arrivals=diurnal:period_s=86400:amplitude=0.5",
    "rate=3,arrivals=spike:every_s=300:length_s=20:factor=5",
)


def _synthetic_texts() -> Sequence[bytes]:
    rng = random.Random(1)
    texts = [
        f"synthetic:n={rng.randint(1, 30)},{arrival},input={rng.choice(LENGTHS)},output={rng.choice(LENGTHS)}"  # noqa: E501
        f"{rng.choice(('', ',seed=4', ',prefixes=3:tokens=64:share=0.5', ',calls=lognormal:3,tool_ms=fixed:20'))}"  # noqa: E501
        for arrival in ARRIVALS
        for _ in LENGTHS
    ]
    texts += [
        "synthetic:agentic,n=9,rate=0.5,calls=lognormal:4,system=60,tool=lognormal:90,tool_ms=lognormal:2500:cv=2",
        "synthetic:clients,n=50,rate=20,clients=5,input=lognormal:60,output=lognormal:20,skew=1.2,cv=1.5,spread=0.6",
        "synthetic:clients,n=50,rate=20,clients=5,prefix=40,input=lognormal:60,output=lognormal:20",
        "synthetic:rollout,steps=2,prompts=4,samples=3,every_s=120,output=pareto:1.2:min=500:max=32768",
        "synthetic:tree,n=20,rate=10,depth=3,branch=4,node=32,input=lognormal:150,output=lognormal:150,skew=1",
    ]
    return [text.encode() for text in texts]


SPEC_WORDS = (
    "inf",
    "-inf",
    "nan",
    "1e308",
    "1e-308",
    "1e-300",
    "1e-320",
    "1e12",
    "-1",
    "-0.0",
    "0",
    "1e400",
    "1_000",
    "\u00b2",
    "\u0663",
    "9223372036854775807",
    "9223372036854775808",
    "1000000000000",
    "100000000",
    "1" + "0" * 400,
    "9" * 5000,
    "",
    "x",
    "=",
    ":",
    ",",
    "1:2",
    "0.5",
    "1e9",
    "1e-9",
    "\x1b[2J",
    "\udcff",
    "1-2",
    "2-1",
)
_SIGNS = ",:=|-+"


def damaged_spec(rng: random.Random, data: bytes) -> bytes:
    """A `NAME:key=value` text with exchanged, dropped, doubled or extreme parts."""
    text = text_of(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        sign = rng.choice([sign for sign in _SIGNS if sign in text] or [","])
        parts = text.split(sign)
        at = rng.randrange(len(parts))
        what = rng.randrange(5)
        if what <= 1:
            parts[at] = rng.choice(SPEC_WORDS)
        elif what == 2:
            key, equals, _ = parts[at].partition("=")
            parts[at] = f"{key}{equals or ':'}{rng.choice(SPEC_WORDS)}"
        elif what == 3:
            parts.insert(at, rng.choice(parts))
        else:
            del parts[at]
        text = sign.join(parts)
    if rng.random() < 0.1:
        return damaged_bytes_of(rng, text)
    return text.encode("utf-8", "surrogateescape")


def damaged_bytes_of(rng: random.Random, text: str) -> bytes:
    from fuzz.mutators import damaged_bytes

    return damaged_bytes(rng, text.encode("utf-8", "surrogateescape"))


@target("spec.synthetic", _synthetic_texts, damage=damaged_spec)
def _synthetic(folder: Path, data: bytes) -> object:
    from llmsim.workload.dataset import load_dataset

    return load_dataset(
        f"synthetic:{text_of(data).removeprefix('synthetic:')}",
        known_models=(),
        granularity=16,
        limit=200,
    )


@target("spec.trace", lambda: [text.encode() for text in TRACE_TEXTS], damage=damaged_spec)
def _trace_spec(folder: Path, data: bytes) -> object:
    from llmsim.workload.dataset import load_dataset

    path = folder / "servegen.csv"
    if not path.exists():
        path.write_bytes((SAMPLES / "servegen.csv").read_bytes())
    text = text_of(data).replace("@", str(path)).removeprefix("trace:")
    return load_dataset(f"trace:{text}", known_models=(), granularity=16)


def specs(*texts: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [text.encode() for text in texts]


@target(
    "spec.router",
    specs(
        "LOAD",
        "RAND",
        "P2C",
        "WEIGHTED:queue=1,prefix=2",
        "PREFIX:threshold=0.5",
        "SESSION",
        "VLLM_DP",
        "LOR",
    ),
    damage=damaged_spec,
)
def _router(folder: Path, data: bytes) -> object:
    from llmsim.routing import parse_router

    return parse_router(no_class(data))


@target(
    "spec.experts",
    specs("BALANCED", "ZIPF:s=1.5", "POWER_LAW:alpha=1.2", "RAND", "RR"),
    damage=damaged_spec,
)
def _experts(folder: Path, data: bytes) -> object:
    from llmsim.costs.experts.routing import parse_expert_routing

    return parse_expert_routing(no_class(data), 1).popularity(2, 4)


@target(
    "spec.goodput", specs("ttft:1000,tpot:40", "e2el:500.5", "ttft:1 tpot:2"), damage=damaged_spec
)
def _goodput(folder: Path, data: bytes) -> object:
    from llmsim.results.requests.goodput import parse_targets

    return parse_targets([text_of(data)])


@target("spec.think_time", lambda: [text.encode() for text in LENGTHS], damage=damaged_spec)
def _think_time(folder: Path, data: bytes) -> object:
    from llmsim.workload.clients import ClientOptions, with_clients

    return with_clients(small_workload(), ClientOptions(4, text_of(data), 2.0), 3)


@target(
    "spec.tiers", specs("CPU", "CPU+SSD lru+lfu", "CPU lru write-through sync"), damage=damaged_spec
)
def _tiers(folder: Path, data: bytes) -> object:
    from llmsim.lowering.kv.tiers import parse_tiers

    words = text_of(data).split(" ")
    given = {
        name: words[at] if at < len(words) else None
        for at, name in enumerate(("eviction", "write", "recall"), 1)
    }
    return parse_tiers(words[0], shared=False, chunk_tokens=len(data), **given)


def no_class(data: bytes) -> str:
    """The text without what would import a module."""
    text = text_of(data)
    name, _, rest = text.partition(":")
    return text if "=" in rest.split(",")[0] and ":" not in rest else name


@cache
def small_workload() -> Any:
    from llmsim.workload.dataset import load_dataset

    return load_dataset(
        "synthetic:n=6,rate=1,input=fixed:5,output=fixed:3", known_models=(), granularity=0
    )


# -------------------- recorded and simulated runs

RESULT_ROWS = [
    {
        "instance id": "0",
        "request id": str(i),
        "model": "m",
        "input": "30",
        "output": "4",
        "arrival": str(10**9 * i),
        "end_time": str(10**9 * i + 5 * 10**8),
        "latency": "500000000",
        "queuing_delay": "0",
        "TTFT": "200000000",
        "TPOT": "100000000",
        "ITL": "[100000000, 100000000, 100000000]",
    }
    for i in range(4)
]


def result_csv() -> bytes:
    from llmsim.export.csv import COLUMNS

    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, restval="0", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(RESULT_ROWS)
    return stream.getvalue().encode()


def bench_result() -> dict[str, Any]:
    return {
        "duration": 9.0,
        "completed": 4,
        "mean_ttft_ms": 200.0,
        "input_lens": [30] * 4,
        "output_lens": [4] * 4,
        "ttfts": [0.2] * 4,
        "itls": [[0.1, 0.1, 0.1]] * 4,
        "start_times": [77.0, 78.0, 79.0, 80.0],
        "latencies": [0.5] * 4,
        "generated_texts": [""] * 4,
        "errors": [""] * 4,
    }


def engine_log() -> bytes:
    rows = [
        {
            "request_id": str(i),
            "input_toks": 30,
            "output_toks": 4,
            "arrival_time": 1_700_000_000.5 + i,
            "queued_ts": 500.0 + i,
            "first_token_ts": 500.2 + i,
            "last_token_ts": 500.5 + i,
        }
        for i in range(4)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def aiperf_log() -> bytes:
    def value(number: Any, unit: str) -> dict[str, Any]:
        return {"value": number, "unit": unit}

    rows = [
        {
            "metadata": {
                "session_num": i,
                "request_start_ns": 10**18 + i * 10**9,
                "benchmark_phase": "profiling",
            },
            "metrics": {
                "input_sequence_length": value(30, "tokens"),
                "output_sequence_length": value(4, "tokens"),
                "time_to_first_token": value(200.0, "ms"),
                "request_latency": value(500.0, "ms"),
                "inter_chunk_latency": value([100.0] * 3, "ms"),
            },
            "error": None,
        }
        for i in range(4)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _recordings() -> Sequence[bytes]:
    return [result_csv(), *encoded(bench_result()), engine_log(), aiperf_log()]


def _recording_target(name: str, sample: Callable[[], bytes]) -> None:
    @target(f"recording.{name}", lambda: [sample()])
    def read(folder: Path, data: bytes) -> object:
        from llmsim.validation import read_recording

        found = read_recording(written(folder, "log", data))
        assert len(found.ttft_s) == len(found.request_id)
        return found.makespan_s


_recording_target("csv", result_csv)
_recording_target("bench", lambda: encoded(bench_result())[0])
_recording_target("engine", engine_log)
_recording_target("aiperf", aiperf_log)


@cache
def _parquet_results() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({
        "request_id": ["0", "1", "2"], "status": ["finished", "finished", "aborted"],
        "arrival_ps": [0, 5, 6], "first_token_ps": [7, 8, -1], "finish_ps": [9, 12, -1],
        "input_tokens": [3, 4, 5], "emitted_tokens": [2, 2, 0], "itl_ps": [[1], [2], []],
    })  # fmt: skip
    columns: list[Any] = [table]
    for name, values in (
        ("arrival_ps", ["a", "b", "c"]),
        ("arrival_ps", [None, 1, 2]),
        ("request_id", [1, None, 2]),
        ("itl_ps", [1, 2, 3]),
        ("input_tokens", [0.5, 1e300, 2.0]),
        ("status", [1, 2, 3]),
        ("emitted_tokens", [None, None, None]),
        ("itl_ps", [None, [None], ["x"]]),
    ):
        at = table.column_names.index(name)
        try:
            columns.append(table.set_column(at, name, pa.array(values)))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
    made = []
    for one in columns:
        stream = io.BytesIO()
        pq.write_table(one, stream, compression="none")
        made.append(stream.getvalue())
    return made


@target("recording.parquet", _parquet_results, slow=True)
def _parquet_recording(folder: Path, data: bytes) -> object:
    from llmsim.validation import read_recording

    return read_recording(written(folder, "requests.parquet", data)).makespan_s


SUMMARY = {"kv_cache": [{"peak_usage": 0.5}], "preemptions": 3}
MANIFEST = {"config": {"groups": [{"engine": {"num_gpu_blocks_override": None}}]}}


@target("recording.run_folder", lambda: encoded(SUMMARY, MANIFEST), slow=True)
def _run_folder(folder: Path, data: bytes) -> object:
    from llmsim.validation import read_recording

    written(folder, "run/requests.parquet", _parquet_results()[0])
    written(
        folder, "run/summary.json", data if b"kv_cache" in data else json.dumps(SUMMARY).encode()
    )
    written(
        folder, "run/manifest.json", json.dumps(MANIFEST).encode() if b"kv_cache" in data else data
    )
    return read_recording(folder / "run")


@target("recording.validate", _recordings, slow=True)
def _validate(folder: Path, data: bytes) -> object:
    good = written(folder, "good.csv", result_csv())
    return command("validate", str(written(folder, "log", data)), str(good))


MEANS = {
    "mean_ttft_ms": 20.5,
    "p99_tpot_ms": 3.0,
    "median_itl_ms": 3,
    "completed": 4,
    "output_throughput": 55.0,
}
AIPERF_MEANS = {
    "time_to_first_token": {"unit": "ms", "avg": 3.0, "p99": 4.0}, "request_count": {"avg": 4},
    "output_token_throughput": {"avg": 5.0},
}  # fmt: skip


@target("recording.means", lambda: encoded(MEANS, AIPERF_MEANS))
def _means(folder: Path, data: bytes) -> object:
    from llmsim.validation.logs.means_readers import read_means

    return read_means(written(folder, "means.json", data))


@target("recording.arrivals", _recordings)
def _arrivals(folder: Path, data: bytes) -> object:
    from llmsim.validation.logs.arrivals import with_recorded_arrivals
    from llmsim.workload.dataset import load_dataset

    workload = load_dataset(
        "synthetic:n=4,rate=1,input=fixed:30,output=fixed:4", known_models=(), granularity=0
    )
    return with_recorded_arrivals(workload, written(folder, "log", data))


@target("recording.series", lambda: [b"time_s\tthroughput\n0\t0\n1\t50.5\n3\t20\n"])
def _series(folder: Path, data: bytes) -> object:
    from llmsim.validation.compare.throughput import read_series

    return read_series(written(folder, "series.tsv", data))


CALIBRATION = {
    "schema_version": 1,
    "kind": "llmsim-calibration",
    "hardware": "H100",
    "constants": {
        "time_factor": 1.1,
        "host_gap_ns": 100.0,
        "collective_factor": 1.0,
        "link_latency_ns": 5.0,
        "link_bandwidth_gb_per_s": 450.0,
    },
}


def _calibrations() -> Sequence[bytes]:
    from llmsim.lowering.adjust.calibration import KIND, SCHEMA_VERSION

    return encoded(CALIBRATION | {"kind": KIND, "schema_version": SCHEMA_VERSION})


@target("calibration", _calibrations)
def _calibration(folder: Path, data: bytes) -> object:
    from llmsim.lowering.adjust.calibration import load_calibration

    return load_calibration(written(folder, "calibration.json", data))


# -------------------- clusters, models, options


@cache
def _clusters() -> Sequence[bytes]:
    names = (
        "h100_llama31_8b",
        "h100_llama31_8b_pd",
        "single_node_moe_dp_ep_instance",
        "single_node_power_instance",
        "single_node_pim_instance",
        "single_node_cxl_instance",
        "h100_multi_shared_prefix_pool",
        "h100_qwen3_30b_a3b_attn2x4_ep8",
        "heterogeneous_instance",
    )
    return [(ROOT / "cluster_config" / f"{name}.json").read_bytes() for name in names]


@target("cluster.load", _clusters)
def _cluster(folder: Path, data: bytes) -> object:
    from llmsim.config import EngineOverrides, load_cluster, resolve
    from llmsim.lowering.device_memory import sheet_memory

    cluster = load_cluster(written(folder, "cluster.json", data))
    return resolve(cluster, EngineOverrides(), sheet=sheet_memory(cluster.path))


@target("cluster.run", lambda: _clusters()[:6], slow=True)
def _cluster_run(folder: Path, data: bytes) -> object:
    path = written(folder, "cluster.json", data)
    dataset = "synthetic:n=3,rate=1,input=fixed:10,output=fixed:5"
    out = folder / "out.csv"
    out.unlink(missing_ok=True)
    words = (
        "--cluster-config",
        str(path),
        "--dataset",
        dataset,
        "--cost-source",
        "roofline",
        "--output",
        str(out),
    )
    try:
        return command("run", *words, "--json")
    except Refused as refused:
        assert refused.code == 3 or not out.exists(), "a refused input left an output"
        raise


def _options() -> Sequence[bytes]:
    lines = (
        "--max-num-seqs 8 --block-size 16 --max-num-batched-tokens 2048",
        "--gpu-memory-utilization 0.9 --seed 1",
        "--num-reqs 2 --goodput ttft:100",
        "--max-model-len 1800 --num-gpu-blocks-override 120",
        "--request-timeout 5 --max-concurrency 2 --think-time fixed:5",
        "--log-interval 0.5",
        "--cudagraph-capture-sizes 1,2,4,8",
        "--long-prefill-token-threshold 128",
        (
            "--speculative-config "
            '{"method":"ngram","num_speculative_tokens":3,"acceptance_rates":[0.5,0.4,0.3]}'
        ),
        "--request-routing-policy P2C",
        "--expert-routing-policy ZIPF:s=1",
        "--prefix-storage CPU --kv-chunk-size 256",
    )
    return [line.encode() for line in lines]


def damaged_options(rng: random.Random, data: bytes) -> bytes:
    """A command line with damaged values; a class of Python is never named."""
    words = text_of(data).split(" ")
    at = rng.randrange(len(words))
    if rng.random() < 0.2:
        words.insert(at, rng.choice(words))
    elif words[at].startswith("{"):
        words[at] = text_of(mutated(rng, words[at].encode()))
    elif not words[at].startswith("--") or rng.random() < 0.2:
        words[at] = text_of(damaged_spec(rng, words[at].encode()))
    return " ".join(words).encode("utf-8", "surrogateescape")


@target("cluster.options", _options, damage=damaged_options, slow=True)
def _command_line(folder: Path, data: bytes) -> object:
    cluster = ROOT / "cluster_config" / "h100_llama31_8b.json"
    dataset = "synthetic:n=3,rate=1,input=fixed:10,output=fixed:5"
    given = [
        word
        for word in text_of(data).split(" ")
        if ":" not in word or "=" in word or word.startswith("{")
    ]
    if any(
        word.startswith(("--output", "--run-dir", "--timeline", "--plug", "--profile"))
        for word in given
    ):
        return None
    words = ("--cluster-config", str(cluster), "--dataset", dataset, "--cost-source", "roofline")
    return command("run", *words, *given)


ENGINE: dict[str, Any] = {
    "max_num_seqs": 8,
    "block_size": 16,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.9,
    "long_prefill_token_threshold": 128,
    "cudagraph_capture_sizes": [1, 2, 4],
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "acceptance_rates": [0.5, 0.4, 0.3],
    },
}


def _engines() -> Sequence[bytes]:
    return encoded(*({name: value} for name, value in ENGINE.items()), ENGINE)


@target("cluster.engine", _engines)
def _engine(folder: Path, data: bytes) -> object:
    cluster = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_bytes())
    whole = json.dumps({**cluster, "engine": "@"}).encode().replace(b'"@"', data)
    return _cluster(folder, whole)


@cache
def _model_configs() -> Sequence[bytes]:
    found = sorted((PRESETS / "models").rglob("*.json"))
    configs = [path.read_bytes() for path in found]
    return [one for one in configs if b'"model_type"' in one and len(one) < 20_000]


@target("model.config", _model_configs)
def _model(folder: Path, data: bytes) -> object:
    from llmsim.model import Dtypes, Layout, load_model, operators

    config = load_model(str(written(folder, "config.json", data)))
    return operators(config, Layout(1, 1), Dtypes())


@target("model.run", lambda: _model_configs()[::5], slow=True)
def _model_run(folder: Path, data: bytes) -> object:
    path = written(folder, "config.json", data)
    cluster = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_bytes())
    cluster["nodes"][0]["instances"][0]["model_name"] = str(path)
    where = written(folder, "cluster.json", json.dumps(cluster).encode())
    dataset = "synthetic:n=2,rate=1,input=fixed:10,output=fixed:5"
    return command(
        "run", "--cluster-config", str(where), "--dataset", dataset, "--cost-source", "roofline"
    )


QUANTIZATION = {
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
}


@target("model.quantization", lambda: encoded(QUANTIZATION))
def _quantization(folder: Path, data: bytes) -> object:
    from llmsim.model import load_model

    written(folder, "m/config.json", next(one for one in _model_configs() if b'"llama"' in one))
    written(folder, "m/hf_quant_config.json", data)
    return load_model(str(folder / "m"))


TOPOLOGY = {
    "devices": 4,
    "devices_relay": False,
    "switches": [{"name": "s", "bisection_gb_per_s": 100, "spread": 1}],
    "links": [
        {"a": str(i), "b": "s", "bandwidth_gb_per_s": 50, "latency_ns": 500, "count": 1}
        for i in range(4)
    ],
    "routes": [["0", "s", "1"]],
}


def _topologies() -> Sequence[bytes]:
    from llmsim.config.topology.file import PRESETS

    return [*encoded(TOPOLOGY), *(path.read_bytes() for path in sorted(PRESETS.glob("*.json")))]


@target("topology", _topologies)
def _topology(folder: Path, data: bytes) -> object:
    from llmsim.config.topology.file import load_topology

    return load_topology(written(folder, "topology.json", data))


@cache
def _pim_parts() -> Sequence[bytes]:
    from llmsim.costs.sources.pim_part import PARTS_DIR

    return [path.read_bytes() for path in sorted(PARTS_DIR.glob("*.ini"))]


@target("pim_part", _pim_parts)
def _pim(folder: Path, data: bytes) -> object:
    from llmsim.costs.sources.pim_part import read_pim_part

    return read_pim_part(written(folder, "part.ini", data))


# -------------------- searches


SPACE = {
    "cluster": "c.json",
    "dataset": "synthetic:n=4,rate=1,input=fixed:5,output=fixed:3",
    "vary": {
        "replicas": [1, 2],
        "engine.block_size": {"from": 16, "to": 64, "factor": 2},
        "engine.gpu_memory_utilization": {"from": 0.5, "to": 0.9},
    },
    "minimise": ["devices"],
    "maximise": ["total_token_throughput"],
    "require": {"p95_ttft_ms": {"at_most": 100}},
    "options": {"--seed": 3},
    "devices_per_node": 8,
}
YAML = b"""cluster: c.json
dataset: synthetic:n=4,rate=1,input=fixed:5,output=fixed:3
vary: {replicas: [1, 2], engine.block_size: {from: 16, to: 64, factor: 2}, "--scheduler": [vllm]}
minimise: [devices]
require: {p95_ttft_ms: {at_most: 100.5}}
"""


@target("search.space", lambda: [*encoded(SPACE), YAML])
def _space(folder: Path, data: bytes) -> object:
    from llmsim.search.apply import load_base, run_of
    from llmsim.search.space import load_space

    if not (folder / "c.json").exists():
        written(folder, "c.json", (ROOT / "cluster_config" / "h100_llama31_8b.json").read_bytes())
    space = load_space(
        written(folder, "space.json" if data[:1] == b"{" and len(data) % 2 else "space.yaml", data)
    )
    base = load_base(space)
    point = {one.name: one.values[0] if one.values else one.low for one in space.dimensions}
    return run_of(base, point)


def _journal_lines(folder: Path) -> list[bytes]:
    """A journal with two answers, written by the search itself, its head first."""
    from llmsim.config.files.code_identity import code_hash
    from llmsim.config.files.input_files import fingerprint
    from llmsim.search.apply import run_of
    from llmsim.search.journal import Answer, Journal, Trial, run_key

    base, points = _searched(folder)
    journal = Journal(folder / "journal.jsonl", base)
    for point, state in zip(points, ("feasible", "infeasible"), strict=True):
        trial = Trial(
            point,
            state,
            "it does not fit" if state == "infeasible" else "",
            {"devices": 1.5},
            "trial-0",
        )
        files = (fingerprint(str(folder / "c.json")), fingerprint(str(folder / "absent.json")))
        journal.add(Answer(trial, run_key(run_of(base, point)), code_hash(), files))
    return (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


def _searched(folder: Path) -> tuple[Any, list[Any]]:
    """What is searched, and two of its points."""
    from llmsim.search.apply import load_base
    from llmsim.search.space import load_space

    written(folder, "c.json", (ROOT / "cluster_config" / "h100_llama31_8b.json").read_bytes())
    base = load_base(load_space(written(folder, "space.yaml", YAML)))
    first = {one.name: one.values[0] if one.values else one.low for one in base.space.dimensions}
    return base, [first, {**first, "replicas": 2}]


@cache
def _journals() -> Sequence[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return [b"".join(_journal_lines(Path(folder))[1:])]


@target("search.journal", _journals, slow=True)
def _journal(folder: Path, data: bytes) -> object:
    """Behind a sound head; what is damaged there is no answer, so that no input of this target is
    refused.
    """
    from llmsim.search.apply import run_of
    from llmsim.search.journal import Journal

    base, points = _searched(folder)
    path = folder / "journal.jsonl"
    path.unlink(missing_ok=True)
    Journal(path, base)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + data)
    trials = [Journal(path, base).answer(point, run_of(base, point)) for point in points]
    again = [Journal(path, base).answer(point, run_of(base, point)) for point in points]
    assert again == trials, "what was read is written and read again"
    return trials


# -------------------- imports of the profiler


def _imported_folders() -> dict[str, Callable[[Path], object]]:
    """Format of an import -> what writes its folder."""
    from tests.costs.builders import write_bundle
    from tests.costs.bundle.test_older_bundle import write_older
    from tests.profiler.test_importers import write_aiconfigurator, write_vidur

    def made(folder: Path) -> Path:
        folder.mkdir(parents=True)
        return folder

    return {
        "vidur": lambda folder: write_vidur(made(folder)),
        "llmservingsim": write_bundle,
        "older": write_older,
        "aiconfigurator": lambda folder: write_aiconfigurator(folder, parquet=False),
        "aiconfigurator_parquet": lambda folder: write_aiconfigurator(folder, parquet=True),
    }


@cache
def _imported_tables(format_name: str) -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "tables"
        _imported_folders()[format_name](folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _import_target(format_name: str) -> None:
    def samples() -> Sequence[bytes]:
        return [
            name.encode() + b"\0" + data for name, data in _imported_tables(format_name).items()
        ]

    def damage(rng: random.Random, data: bytes) -> bytes:
        name, _, content = data.partition(b"\0")
        return name + b"\0" + mutated(rng, content)

    @target(f"import.{format_name}", samples, damage=damage, slow=True)
    def read(folder: Path, data: bytes) -> object:
        from tests.costs.builders import LLAMA

        name, _, content = data.partition(b"\0")
        for other, sound in _imported_tables(format_name).items():
            written(folder / "tables", other, content if other == name.decode() else sound)
        words = (
            "--model",
            LLAMA,
            "--hardware",
            "Card",
            "--tp",
            "1",
            "--out-root",
            str(folder / "out"),
        )
        return profiler_command("import", str(folder / "tables"), *words)


for _name in ("vidur", "llmservingsim", "older", "aiconfigurator", "aiconfigurator_parquet"):
    _import_target(_name)


# -------------------- costs


def _bundle_tables() -> dict[str, bytes]:
    import tempfile

    from tests.costs.builders import write_bundle

    with tempfile.TemporaryDirectory() as root:
        folder = write_bundle(Path(root))
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


_tables = cache(_bundle_tables)


def _bundle_target(name: str) -> None:
    @target(f"bundle.{name.removesuffix('.csv')}", lambda: [_tables()[name]], slow=True)
    def read(folder: Path, data: bytes) -> object:
        from llmsim.costs import compile_costs
        from tests.costs.builders import request

        where = folder / "MyCard" / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1"
        for other, content in _tables().items():
            written(where, other, data if other == name else content)
        asked = request(
            hardware="MyCard", source="bundle", profile_dirs=(folder,), max_tokens=256, max_seqs=16
        )
        return compile_costs(asked)


for _name in ("dense.csv", "per_sequence.csv", "attention.csv", "skew.csv"):
    _bundle_target(_name)


@cache
def _older_tables() -> dict[str, bytes]:
    import tempfile

    from tests.costs.bundle.test_older_bundle import write_older

    with tempfile.TemporaryDirectory() as root:
        folder = write_older(Path(root))
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*.csv"))
        }


@target(
    "bundle.older",
    lambda: [name.encode() + b"\0" + data for name, data in _older_tables().items()],
    slow=True,
    damage=lambda rng, data: (
        data.partition(b"\0")[0] + b"\0" + mutated(rng, data.partition(b"\0")[2])
    ),
)
def _older(folder: Path, data: bytes) -> object:
    from llmsim.costs import compile_costs
    from tests.costs.builders import LLAMA, request
    from tests.costs.bundle.test_older_bundle import SHEET

    name, _, content = data.partition(b"\0")
    where = folder / SHEET / LLAMA / "tp1"
    for other, sound in _older_tables().items():
        written(where, other, content if other == name.decode() else sound)
    asked = request(
        hardware=SHEET, source="bundle", profile_dirs=(folder,), max_tokens=256, max_seqs=16
    )
    return compile_costs(asked)


EXTERNAL_ROWS: list[dict[str, Any]] = [
    {"operator": "gemm", "device": "A40", "tokens": 1, "n": 4096, "k": 4096, "latency_us": 60.0},
    {
        "operator": "gemm",
        "device": "A40",
        "tokens": 64,
        "n": 4096,
        "k": 4096,
        "latency_us": 64.0,
        "energy_uj": 3,
    },
    {
        "operator": "decode",
        "sequences": 1,
        "cached_tokens": 1024,
        "latency_us": 20,
        "kind": "measured",
    },
    {
        "operator": "decode",
        "sequences": 16,
        "cached_tokens": 1024,
        "latency_us": 120,
        "kind": "measured",
    },
    {
        "operator": "prefill",
        "new_tokens": 512,
        "cached_tokens": 0,
        "latency_us": 200,
        "kind": "measured",
    },
]


@cache
def _external_tables() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = dict.fromkeys(name for row in EXTERNAL_ROWS for name in row)
    lines = [
        ",".join(names),
        *(",".join(str(row.get(name, "")) for name in names) for row in EXTERNAL_ROWS),
    ]
    stream = io.BytesIO()
    pq.write_table(
        pa.table({name: [row.get(name) for row in EXTERNAL_ROWS] for name in names}), stream
    )
    return [
        "\n".join(lines).encode(),
        *encoded(EXTERNAL_ROWS, {"rows": EXTERNAL_ROWS}),
        stream.getvalue(),
    ]


@target("costs.external", _external_tables)
def _external(folder: Path, data: bytes) -> object:
    from llmsim.costs.sources.external.table import read_external

    ending = (
        "parquet" if data[:3] == b"PAR" else "json" if data.lstrip()[:1] in (b"{", b"[") else "csv"
    )
    return read_external(written(folder, f"t.{ending}", data))


@target("costs.external_run", lambda: _external_tables()[:2], slow=True)
def _external_run(folder: Path, data: bytes) -> object:
    from llmsim.costs import compile_costs
    from tests.costs.builders import request

    path = written(folder, "t.json" if data.lstrip()[:1] in (b"{", b"[") else "t.csv", data)
    return compile_costs(request(hardware="A40", cost_tables=(path,), max_tokens=256, max_seqs=16))


@target(
    "costs.import",
    lambda: [
        b"op,t,width,depth,cyc\ngemm,1,4096,4096,26400\ngemm,64,4096,4096,30000\n",
        b"LayerID, Total Cycles,\n0, 26400,\n1, 30000,\n",
    ],
)
def _import(folder: Path, data: bytes) -> object:
    from llmsim.costs.sources.external.importers import by_columns, from_scale_sim

    path = written(folder, "report.csv", data)
    if b"LayerID" in data:
        topology = written(
            folder, "topology.csv", b"Layer,M,N,K\nqkv_proj@1,1,6144,4096\ngemm,64,4096,4096\n"
        )
        return from_scale_sim(path, topology, "A40", 1e9, {})
    columns = {"operator": "op", "tokens": "t", "n": "width", "k": "depth", "latency_cycles": "cyc"}
    return by_columns(path, columns, {}, 1e9)


@target(
    "costs.scale_sim_topology",
    lambda: [b"Layer,M,N,K\nqkv_proj@1,1,6144,4096\ngemm,64,4096,4096\n"],
)
def _scale_sim(folder: Path, data: bytes) -> object:
    from llmsim.costs.sources.external.importers import from_scale_sim

    report = written(folder, "report.csv", b"LayerID, Total Cycles,\n0, 26400,\n1, 30000,\n")
    return from_scale_sim(report, written(folder, "topology.csv", data), "A40", 1e9, {})


@target("costs.blackbox", lambda: encoded({"beta": [100.0, 2.5, 3.0], "alpha": [10.0, 0.1, 5]}))
def _blackbox(folder: Path, data: bytes) -> object:
    from llmsim.costs.sources.blackbox import read_coefficients

    return read_coefficients(written(folder, "blackbox.json", data))


@target(
    "costs.expert_trace",
    lambda: [
        b"layer,expert,tokens\n0,0,5\n0,1,6\n1,0,7\n1,1,2.5\n",
        b"[[1, 2], [3, 4]]",
        b"[[1, 2], [3, 4]]\n[[2, 2], [2, 4]]\n",
    ],
)
def _expert_trace(folder: Path, data: bytes) -> object:
    from llmsim.costs.experts.routing import parse_expert_routing

    ending = "csv" if data[:1] == b"l" else "json" if b"\n" not in data else "jsonl"
    path = written(folder, f"t.{ending}", data)
    return parse_expert_routing(f"TRACE:{path}").popularity(2, 2)


def _npy() -> bytes:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, np.array([[1.0, 2.0], [3.0, 4.0]]))
    return stream.getvalue()


@target("costs.expert_npy", lambda: [_npy()])
def _expert_npy(folder: Path, data: bytes) -> object:
    from llmsim.costs.experts.routing import parse_expert_routing

    return parse_expert_routing(f"TRACE:{written(folder, 't.npy', data)}").popularity(2, 2)


COST_SUMMARY = {
    "total_token_throughput": 5.0,
    "cost": {"price_per_hour": 2.0, "per_million_output_tokens": 3.0},
    "p95_ttft_ms": 5.0,
    "p95_tpot_ms": 6.0,
    "energy": {"j_per_token": 0.5},
    "goodput": {"share": 0.5},
    "workload": {"requests": 3, "source": "x"},
    "sources": {"by_provenance": {"analytic": 0.5}},
}


@target("costs.summary", lambda: encoded(COST_SUMMARY), slow=True)
def _cost(folder: Path, data: bytes) -> object:
    good = written(folder, "good.json", json.dumps(COST_SUMMARY).encode())
    return command("cost", str(good), str(written(folder, "other.json", data)))


# -------------------- schedules, graphs, inputs of astra-sim


SCHEDULE = {
    "config": {
        "num_gpu_blocks": 200,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "block_size": 16,
    },
    "requests": [
        {"id": f"r{i}", "arrival": 0.05 * i, "segments": [[i, 37]], "output_len": 3}
        for i in range(3)
    ],
    "resolved": {
        "max_concurrent_batches": 1,
        "num_lookahead_tokens": 0,
        "num_spec_tokens": 0,
        "reserve_full_isl": True,
        "max_num_scheduled_tokens": 2048,
        "use_v2_model_runner": True,
        "watermark": 0.0,
    },
    "steps": [
        {
            "t": 0.0,
            "sched": [["r0", 37, 0]],
            "running": 1,
            "waiting": 0,
            "free_blocks": 196,
            "t_end": 0.01,
            "free_blocks_after": 196,
        },
    ],
}


def _recorded() -> Sequence[bytes]:
    from tests.shared_data import SHARED

    found = sorted((SHARED / "vllm_oracle").glob("*.json")) if SHARED.exists() else []
    small = [path.read_bytes() for path in found if path.stat().st_size < 60_000]
    return [*small[:4], *encoded(SCHEDULE)]


@target("conformance", _recorded, slow=True)
def _replay(folder: Path, data: bytes) -> object:
    from llmsim.scheduling.conformance.recorded import replay

    return replay(written(folder, "case.json", data))


def _chakra() -> Sequence[bytes]:
    from engine import chakra_file as ck

    nodes = [
        ck.node(1, ck.COMP, micros=2, num_ops=1000, tensor_size=10),
        ck.node(2, ck.COLL, [1], comm_type=0),
    ]
    return [ck.trace(nodes)]


@target("graph.chakra", _chakra)
def _chakra_reader(folder: Path, data: bytes) -> object:
    from llmsim.export.chakra import read_trace

    return list(read_trace(written(folder, "workload.0.et", data)))


# -------------------- commands


@dataclass
class Refused(Exception):
    """A command ended with an error that it says."""

    code: int
    said: str = field(default="")


def command(*words: str) -> object:
    """Runs a command of `llmsim`; raises Refused where it exits with 2 or 3, and what was no error
    of the user.
    """
    from llmsim.cli import main

    return ended(main, words)


def profiler_command(*words: str) -> object:
    """The same of `python -m profiler`."""
    from llmsim.profiler.cli.command import main

    return ended(main, words)


def ended(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> None:
    """Calls a program; raises Refused as `command`, and AssertionError for output that no program
    may have.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    if code in (2, 3):
        sentences = [line for line in err.getvalue().splitlines() if ": error: " in line]
        assert code == 3 or len(sentences) == 1, f"no single sentence: {err.getvalue()[-500:]!r}"
        raise Refused(code, err.getvalue())
    assert code == 0, f"exit code {code}: {err.getvalue()[-800:]}"
    said = out.getvalue() + err.getvalue()
    bad = sorted(
        {character for character in said if ord(character) < 32 and character not in "\n\t"}
    )
    assert not bad, f"control characters {bad} reach the terminal"
    if "--json" in words:
        json.loads(out.getvalue())
