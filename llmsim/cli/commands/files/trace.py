"""`llmsim trace`: says what is in a trace of any known format, and writes it in another."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict, replace

from llmsim.config.errors import InputError
from llmsim.plurals import counted

if TYPE_CHECKING:
    from llmsim.core import Workload
    from llmsim.workload.formats import Trace
    from llmsim.workload.options import TraceOptions

INSPECT_HELP = (
    "Describe a trace of any known format: number of requests, rate, burstiness, lengths, "
    "prefix hits. The format is recognised by the content."
)
CONVERT_HELP = (
    "Write a trace of any known format as JSON Lines in the format of LLMServingSim or Mooncake."
)
CONTENT_BLOCK = 16
INSPECTED_KEYS = 1 << 23
"""Where a trace says how much of a prompt repeats, but names no blocks, a card looks at so many
blocks at most: larger ones where the trace is long.
"""
TARGETS = ("llmservingsim", "mooncake")
MOST_NAMES = 5
"""Names of models that a note repeats."""
OWN_FORMATS = ("llmservingsim", "synthetic")
"""Formats whose names of models are those of a cluster."""
SELECTION = (
    "speedup",
    "window",
    "sample",
    "seed",
    "limit",
    "rate",
    "failures",
    "turns",
    "block",
    "tokenizer",
    "columns",
    "unit",
    "model",
)

Input = Annotated[
    str,
    typer.Argument(
        help="Names a trace file (also .gz or .zst; - is standard input), or a generator "
        "synthetic:...",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Sets the format, which is otherwise recognised by the content."),
]
Speedup = Annotated[
    str | None, typer.Option("--speedup", help="Divides arrival times by this factor.")
]
Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        help="Keeps arrivals from START to END, in seconds after the first arrival, as START-END.",
    ),
]
Sample = Annotated[
    str | None,
    typer.Option("--sample", help="Keeps each request or session with this probability."),
]
Seed = Annotated[str | None, typer.Option("--seed", help="Seeds --sample and --rate.")]
Limit = Annotated[
    str | None, typer.Option("--limit", help="Keeps the first N requests or sessions; 0 keeps all.")
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--rate", help="Replaces the arrivals by Poisson arrivals of this rate per second."
    ),
]
Failures = Annotated[
    str | None,
    typer.Option(
        "--failures", help="Sets what happens to requests without tokens: drop (default) or keep."
    ),
]
Turns = Annotated[
    str | None,
    typer.Option(
        "--turns", help="Chooses the turns of a ShareGPT conversation: all (default) or first."
    ),
]
Block = Annotated[
    str | None, typer.Option("--block", help="Sets the tokens per hash id of the input.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Names a tokenizer.json that counts the tokens of texts."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Names the columns of a CSV or the keys of JSON Lines, as ARRIVAL|PROMPT|ANSWER.",
    ),
]
Unit = Annotated[
    str | None,
    typer.Option("--unit", help="Sets the unit of arrivals in such a file: s, ms, us or ns."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="<NAME or OLD=NEW|...>",
        help="Names the model of all requests, or replaces names of the trace, as OLD=NEW|OLD=NEW.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Prints the trace card as JSON.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", min=1, help="Counts the requests with more tokens than this."),
]
Output = Annotated[
    Path,
    typer.Argument(
        help="Names the file to write (packed if .gz or .zst; - is standard output).",
        show_default=False,
    ),
]
Target = Annotated[
    str, typer.Option("--to", help="Sets the output format: llmservingsim or mooncake.")
]
TokenIds = Annotated[
    bool,
    typer.Option(
        "--token-ids", help="Writes random token ids that keep shared prefixes (llmservingsim)."
    ),
]
OutputBlock = Annotated[
    int,
    typer.Option(
        "--output-block", min=1, help="Sets the tokens per hash id of the output (mooncake)."
    ),
]


def inspect(
    path: Input,
    format_name: Format = None,
    speedup: Speedup = None,
    window: Window = None,
    sample: Sample = None,
    seed: Seed = None,
    limit: Limit = None,
    rate: Rate = None,
    failures: Failures = None,
    turns: Turns = None,
    block: Block = None,
    tokenizer: Tokenizer = None,
    columns: Columns = None,
    unit: Unit = None,
    model: Model = None,
    max_model_len: MaxModelLen = None,
    as_json: Json = False,
) -> None:
    """Prints the card; raises what reading a trace raises (InputError)."""
    given = dict(locals())
    from llmsim.workload.card import card, render

    trace = _read(path, _selection(given), CONTENT_BLOCK, max_keys=INSPECTED_KEYS)
    made = card(trace.workload, trace.format, max_model_len=max_model_len)
    print(json.dumps(made, indent=2) if as_json else render(made))


def convert(
    path: Input,
    output: Output,
    to: Target = "llmservingsim",
    token_ids: TokenIds = False,
    output_block: OutputBlock = 512,
    format_name: Format = None,
    speedup: Speedup = None,
    window: Window = None,
    sample: Sample = None,
    seed: Seed = None,
    limit: Limit = None,
    rate: Rate = None,
    failures: Failures = None,
    turns: Turns = None,
    block: Block = None,
    tokenizer: Tokenizer = None,
    columns: Columns = None,
    unit: Unit = None,
    model: Model = None,
) -> None:
    """Writes the file; raises what reading a trace raises, and InputError where the file cannot be
    written.
    """
    given = dict(locals())
    from llmsim.export.files import STANDARD, check_writable, keep_inputs
    from llmsim.workload.dataset import file_of

    if to not in TARGETS:
        raise InputError(f'--to is "{to}"; it may be {", ".join(TARGETS)}')
    keep_inputs("the output", output, map(Path, file_of(path)))
    if str(output) != STANDARD:
        check_writable(output)
    trace = _read(path, _selection(given), CONTENT_BLOCK)
    if to == "mooncake":
        _write_mooncake(trace, output, output_block)
    else:
        from llmsim.export.jsonl import write_jsonl

        trace = _without_foreign_models(trace, model)
        write_jsonl(trace.at(CONTENT_BLOCK), output, token_ids=token_ids)
        if len(trace.workload.keys) and not token_ids:
            print(
                f"{output}: shared prefixes are lost without token ids; --token-ids keeps them",
                file=sys.stderr,
            )
    for note in trace.workload.notes:
        print(f"note: {note}", file=sys.stderr)
    said = sys.stderr if str(output) == STANDARD else sys.stdout
    count = len(trace.workload)
    what = f"{counted(count, 'request')}"
    print(f"{output}: {what}, {to} (from {trace.format})", file=said)


def _selection(given: Mapping[str, Any]) -> dict[str, str]:
    """Those of a command's options that say which trace is meant, and which part of it; only what
    was given.
    """
    named = {"format": given["format_name"], **{name: given[name] for name in SELECTION}}
    return {name: value for name, value in named.items() if value is not None}


def _without_foreign_models(trace: "Trace", model: str | None) -> "Trace":
    """The trace without the names of models that its own format alone may have: `run` ignores them
    there, and refuses them in LLMServingSim's format. Names that `model` gives are kept.
    """
    import numpy as np

    from llmsim.workload.options import options_from

    workload = trace.workload
    given = {} if model is None else {"model": model}
    kept = {new for _, new in options_from(given, "--model").models}
    left = [name for name in workload.models if name not in kept]
    if trace.format in OWN_FORMATS or not left:
        return trace
    index = np.array([-1 if name in left else i for i, name in enumerate(workload.models)] + [-1])
    more = f" and {len(left) - MOST_NAMES} more" if len(left) > MOST_NAMES else ""
    note = (
        f"the trace's names of models ({', '.join(left[:MOST_NAMES])}{more}) are left out, since "
        f"`run` refuses those that a cluster does not serve; --model NAME, or "
        f"--model '{left[0]}=NAME', writes names"
    )
    named = replace(
        workload, model=index[workload.model].astype(np.int16), notes=(*workload.notes, note)
    )
    return replace(trace, workload=named)


def _write_mooncake(trace: "Trace", output: Path, block: int) -> None:
    import msgspec

    from llmsim.export.files import packed_writer
    from llmsim.workload.block_content_ids import with_granularity
    from llmsim.workload.formats.cloud.mooncake import rows

    workload: Workload = trace.workload
    if not len(workload.keys):  # no content that blocks of another size would cut
        workload = with_granularity(workload, block)
    if block % max(workload.granularity, 1):
        if not trace.has_handles:
            raise InputError(
                f"--output-block is {block}; it must be a multiple of {workload.granularity}, "
                "since the trace names its content in blocks of as many tokens"
            )
        workload = trace.at(block)
    if block > workload.granularity > 0 and len(workload.keys):
        kept = f"--output-block {workload.granularity} keeps them"
        print(
            f"{output}: prefixes that agree for less than {block} tokens are lost; {kept}",
            file=sys.stderr,
        )
    with packed_writer(output) as stream:
        for row in rows(workload, block):
            stream.write(msgspec.json.encode(row) + b"\n")


def _read(path: str, asked: dict[str, str], granularity: int, *, max_keys: int = 0) -> "Trace":
    from llmsim.workload.formats import Trace, read_trace
    from llmsim.workload.options import TraceOptions, is_trace_text, options_from, parse_trace_text

    path = "/dev/stdin" if path == "-" else path
    if path.startswith("synthetic:"):
        return _generated(path, asked, granularity)
    options = TraceOptions()
    if is_trace_text(path):
        path, options = parse_trace_text(path)
    named = options_from(asked, path)
    options = replace(
        options,
        **{
            name: value
            for name, value in asdict(named).items()
            if value != getattr(TraceOptions(), name)
        },
    )
    trace: Trace = read_trace(
        path, known_models=(), granularity=granularity, options=options, max_keys=max_keys
    )
    return trace


def _generated(text: str, asked: dict[str, str], granularity: int) -> "Trace":
    from llmsim.workload import load_dataset
    from llmsim.workload.formats import Trace
    from llmsim.workload.options import options_from
    from llmsim.workload.selection import selected

    options: TraceOptions = options_from(asked, text)
    workload = load_dataset(text, known_models=(), granularity=granularity, limit=0)
    changed = options.changes_workload or options.limit > 0
    return Trace(
        "synthetic", selected(workload, options) if changed else workload, has_handles=False
    )
