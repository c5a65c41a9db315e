"""The command line of the profiler: `measure`, `serve-log`, `import`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from llmsim.cli import guarded
from llmsim.cli.usage import Command, Group
from llmsim.config.errors import InputError

FORMATS = ("llmservingsim", "older", "vidur", "aiconfigurator", "external")
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
app = typer.Typer(
    cls=Group,
    help="Measures operators and serving engines on your device, and imports what others measured.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.callback()
def _several_commands() -> None:
    pass


Word = TypeVar("Word", bound=str)
MODES: tuple[Literal["graph", "eager"], ...] = ("graph", "eager")
Model = Annotated[
    str, typer.Argument(help="Model preset, or the path of a config.json.", show_default=False)
]
Hardware = Annotated[
    str, typer.Option("--hardware", help="Name of the device in cluster files and folders.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=0, help="CPU threads; 0: PyTorch's choice; by default 1 on a CPU."
    ),
]
Clock = Annotated[
    str,
    typer.Option(
        help="wall, cpu (processor time, whatever else runs), or auto: cpu for one thread of a CPU."
    ),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="bf16, fp16 or fp32; the model's by default.")
]
Types = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="bf16, fp16 or fp32; fp8 or int8: of weights alone; the model's by default."
    ),
]

MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of the largest step; by default 2048, on a CPU 512."),
]
LongestContext = Annotated[
    int | None,
    typer.Option(
        min=16, help="Longest context; by default the model's, at most 16384, on a CPU 2048."
    ),
]
ChunkFactor = Annotated[
    float | None,
    typer.Option(min=1.1, help="Ratio of neighbouring chunk sizes; by default 2, on a CPU 6."),
]
ContextFactor = Annotated[
    float | None,
    typer.Option(min=1.1, help="Ratio of neighbouring contexts; by default 2, on a CPU 6."),
]
HowRun = Annotated[
    str,
    typer.Option(
        help="engine (inside transformers'), fused (vLLM's shapes), eager (transformers'), or auto."
    ),
]


Tp = Annotated[str, typer.Option("--tp", help="Tensor-parallel degrees, comma-separated.")]
OutRoot = Annotated[Path, typer.Option("--out-root", help="Profile directory to write below.")]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(min=1, help="Sequences of the largest step; by default 256, on a CPU 32."),
]
Attention = Annotated[
    str, typer.Option(help="auto, flash, flashmla, triton, sdpa, or packed (transformers').")
]
Mode = Annotated[str | None, typer.Option(help="graph or eager; graph on CUDA by default.")]
Budget = Annotated[
    float | None, typer.Option("--budget", min=0.01, help="Minutes; the rest by another call.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Add rows even to another measurement's folder.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be measured, and measure nothing; needs no device."
    ),
]


@app.command(
    "measure",
    cls=Command,
    help="Time the operators of a model and write a profile bundle; continues where it stopped.",
)
def measure_command(
    model: Model,
    hardware: Hardware,
    tp: Tp = "1",
    out_root: OutRoot = Path("profiler/perf"),
    dtype: Types = None,
    device: Device = "auto",
    threads: Threads = None,
    max_num_batched_tokens: MaxTokens = None,
    max_num_seqs: MaxNumSeqs = None,
    attention_max_kv: LongestContext = None,
    attention_chunk_factor: ChunkFactor = None,
    attention_kv_factor: ContextFactor = None,
    style: HowRun = "auto",
    attention: Attention = "auto",
    mode: Mode = None,
    clock: Clock = "auto",
    budget: Budget = (None),
    skew: Annotated[bool, typer.Option(help="Measure batches of unequal lengths too.")] = True,
    force: Force = False,
    dry_run: DryRun = False,
) -> int:
    from llmsim.model import load_model
    from llmsim.profiler.bundle.defaults import Asked, clock_of, limits_for, on_cpu, threads_of
    from llmsim.profiler.cli.measure import MeasureOptions, measure

    cpu = on_cpu(device)
    asked = Asked(
        max_num_batched_tokens,
        max_num_seqs,
        attention_max_kv,
        attention_chunk_factor,
        attention_kv_factor,
    )
    limits = limits_for(asked, cpu=cpu, positions=load_model(model).max_position_embeddings)
    options = MeasureOptions(
        model=model,
        hardware=_hardware(hardware),
        out_root=out_root,
        degrees=_degrees(tp),
        limits=limits,
        dtype=dtype,
        device=device,
        style=_one_of("--style", style, ("auto", "engine", "fused", "eager")),
        attention=attention,
        mode=_one_of("--mode", mode, MODES) if mode else None,
        budget_minutes=budget,
        threads=threads_of(threads, cpu=cpu),
        force=force,
        skew=skew,
        clock=clock_of(_one_of("--clock", clock, ("auto", "wall", "cpu")), threads, cpu=cpu),
    )
    if dry_run:
        from llmsim.profiler.cli.dry_run import dry_run as described

        print("\n".join(described(options)))
        return 0
    folder = measure(options)
    print(f"{folder}: llmsim run --profile-dir {out_root} uses it for hardware {hardware}")
    return 0


Datasets = Annotated[
    list[str],
    typer.Option(
        "--dataset",
        help="Trace, in any form that llmsim run takes; several are replayed with one start.",
    ),
]
EngineArguments = Annotated[
    str | None,
    typer.Option(
        "--engine-args", help="JSON object: more of vLLM's AsyncEngineArgs or SGLang's ServerArgs."
    ),
]
HardwareOption = Annotated[
    str | None, typer.Option(help="Name of the profile, for the cluster file.")
]
MaxNumSeqsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Requests of the largest step; by default 128, on a CPU 32."),
]
KvTokens = Annotated[int | None, typer.Option(min=512, help="Tokens that the KV cache holds.")]
GpuMemoryUtilization = Annotated[
    float, typer.Option(min=0.05, max=1.0, help="vLLM's share of the memory.")
]


@app.command(
    "serve-log",
    cls=Command,
    help="Run a trace on a real serving engine with dummy weights and record what it did.",
)
def serve_log_command(
    model: Model,
    dataset: Datasets,
    output: Annotated[Path, typer.Option("--output", help="Folder of the logs.")],
    engine: Annotated[str, typer.Option(help="auto, vllm, sglang or transformers.")] = "auto",
    hardware: HardwareOption = None,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
    max_num_seqs: MaxNumSeqsOption = None,
    max_num_batched_tokens: MaxTokens = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest context.")] = None,
    kv_tokens: KvTokens = None,
    gpu_memory_utilization: GpuMemoryUtilization = 0.9,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Devices of the engine.")] = 1,
    num_reqs: Annotated[int, typer.Option(min=0, help="Requests to replay; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of the made-up prompts.")] = 0,
    clock: Clock = "auto",
    engine_args: EngineArguments = None,
) -> int:
    from llmsim.profiler.bundle.defaults import (
        CPU,
        SERVED_SEQS,
        SERVED_TOKENS,
        clock_of,
        on_cpu,
        threads_of,
    )
    from llmsim.profiler.serve.serve_log import SERVERS, ServeOptions, serve_log, summary_of

    cpu = on_cpu(device) and engine not in SERVERS
    options = ServeOptions(
        model=model,
        dataset=dataset[0],
        output=output,
        device=device,
        dtype=dtype,
        threads=threads_of(threads, cpu=cpu),
        engine=_one_of("--engine", engine, ("auto", "vllm", "sglang", "transformers")),
        max_num_seqs=max_num_seqs or (CPU.max_seqs if cpu else SERVED_SEQS),
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens or (CPU.max_tokens if cpu else SERVED_TOKENS),
        kv_tokens=kv_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        tensor_parallel=tensor_parallel_size,
        limit=num_reqs,
        seed=seed,
        hardware=hardware,
        clock=clock_of(_one_of("--clock", clock, ("auto", "wall", "cpu")), threads, cpu=cpu),
        engine_arguments=_json_object("--engine-args", engine_args),
    )
    for folder, log in serve_log(options, dataset):
        for name, value in summary_of(log).items():
            print(f"{name}: {value:.3f}")
        print(f"{folder}: compare with: llmsim validate {folder / 'requests.jsonl'} RUN_FOLDER")
    return 0


@app.command(
    "import",
    cls=Command,
    help="Read profiles that others measured and write a bundle; says what was left out and why.",
)
def import_command(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Files, or folders to search for .csv, .txt, .parquet, .json."),
    ],
    model: Annotated[
        str, typer.Option("--model", help="Model preset, or the path of a config.json.")
    ],
    hardware: Hardware,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree of the rows to take.")] = 1,
    out_root: Annotated[
        Path, typer.Option("--out-root", help="Profile directory to write below.")
    ] = Path("profiler/perf"),
    dtype: Dtype = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; told by columns.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the largest step.")
    ] = 2048,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences of the largest step.")] = 256,
    attention_max_kv: Annotated[int, typer.Option(min=16, help="Longest context.")] = 16384,
) -> int:
    from llmsim.model import load_model, resolve_dtypes
    from llmsim.profiler.importing.run import import_profiles
    from llmsim.profiler.importing.target import Target

    config = load_model(model)
    short = resolve_dtypes(config, dtype).weight
    target = Target(
        config,
        _hardware(hardware),
        tp,
        short,
        out_root,
        max_num_batched_tokens,
        max_num_seqs,
        attention_max_kv,
    )
    report, written = import_profiles(sources, target, format_name)
    print("\n".join(report.lines()))
    print(f"{written[0].parent}: {', '.join(path.name for path in written)}")
    return 0


def _degrees(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f'--tp is "{text}"; it must be degrees like "1" or "1,2,4"')
    return tuple(sorted({int(part) for part in parts}))


def _hardware(name: str) -> str:
    """The name of a device, which is one folder of a profile directory."""
    if not name.strip() or name in (".", "..") or "/" in name or "\\" in name:
        raise InputError(
            f'--hardware is "{name}"; it must be a name such as H200, since a folder is called '
            "by it"
        )
    return name


def _json_object(option: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(
            f"{option} is '{text}'; it must be a JSON object such as {{\"enforce_eager\": true}}"
        )
    return found


def _one_of(option: str, value: str, known: Sequence[Word]) -> Word:
    for word in known:
        if word == value:
            return word
    raise InputError(f'{option} is "{value}"; it may be {", ".join(known)}')


def main(arguments: Sequence[str] | None = None) -> int:
    """The `profiler` command; returns the exit code (as `llmsim`'s)."""
    return guarded(lambda: app(arguments, standalone_mode=False), "profiler")
