"""Reads a trace in any of the known formats, told by its content and never by its name."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError, nearest
from llmsim.core import Workload
from llmsim.loading import collections_paused
from llmsim.workload.block_content_ids import with_granularity
from llmsim.workload.formats.head import Head, head_of
from llmsim.workload.formats.own.records import paths_of
from llmsim.workload.formats.source import Source
from llmsim.workload.models import ModelNames
from llmsim.workload.options import TraceOptions
from llmsim.workload.selection import selected

FORMATS = {
    "llmservingsim": "bench.llmservingsim",
    "bailian": "cloud.bailian",
    "tracelab": "chat.tracelab",
    "aiperf": "bench.aiperf",
    "weka": "chat.weka",
    "vllm-bench": "bench.vllm_bench",
    "sharegpt": "chat.sharegpt",
    "mooncake": "cloud.mooncake",
    "azure": "cloud.azure",
    "burstgpt": "cloud.burstgpt",
    "vidur": "bench.vidur",
    "baseten": "cloud.baseten",
    "csv": "own.csv_columns",
    "jsonl": "own.json_columns",
    "openai": "own.openai_requests",
}
"""Name -> module with `detect(head)` and `read(source, head)`; the first to recognise a file has
it.
"""


class Trace(Struct, frozen=True):
    """A file's requests; `has_handles` says that the keys are the file's own block ids
    (`block_content_ids`).
    """

    format: str
    workload: Workload
    has_handles: bool

    def at(self, granularity: int) -> Workload:
        """The workload with keys for an engine's blocks; others must have been read at that
        granularity.
        """
        return with_granularity(self.workload, granularity) if self.has_handles else self.workload


def module_of(name: str) -> ModuleType:
    """The reader of a format. Raises InputError for an unknown name."""
    if name not in FORMATS:
        raise InputError(
            f'unknown trace format "{name}"{nearest(name, FORMATS)}; known: {", ".join(FORMATS)}'
        )
    return importlib.import_module(f"llmsim.workload.formats.{FORMATS[name]}")


def detect(path: str, head: Head) -> str:
    """The name of the format. Raises InputError where nothing matches, with what the file begins
    with.
    """
    for name in FORMATS:
        if module_of(name).detect(head):
            return name
    if head.kind == "empty":
        raise InputError(f"{path}: the trace is empty", file=str(path))
    for keys, what in NO_TRACES.items():
        if head.has(*keys):
            raise InputError(f"{path}:1:1: {what}", file=str(path))
    if head.shown.startswith("//") or head.has("nodes", "link_bw"):
        raise InputError(
            f"{path}:1:1: a cluster file, as --cluster-config takes it, and no trace",
            file=str(path),
        )
    if head.kind == "array" and head.first and _known_line(head.first):
        raise InputError(
            f"{path}:1:1: the requests are one JSON array; write each of them as a line of its own",
            file=str(path),
        )
    if ";" in head.shown and head.kind == "":
        raise InputError(
            f'{path}:1:1: the columns are separated by ";" ({head.shown}); a trace has commas',
            file=str(path),
        )
    named = "; 'trace:FILE,columns=ARRIVAL|PROMPT|ANSWER', in quotes, names them"
    listed = ", ".join(head.columns or paths_of(head.first or {}))
    has_names = head.kind in ("csv", "lines", "object") and 0 < len(listed) <= MOST_SHOWN
    what = "columns" if head.kind == "csv" else "keys"
    columns = f" ({what} {listed}{named})" if has_names else ""
    simplest = '{"input_toks": 200, "output_toks": 100, "arrival_time_ns": 0}'
    raise InputError(
        f'{path}:1:1: not a trace that is known: it begins with "{head.shown}"{columns}; the '
        "simplest has lines such "
        f"as {simplest}; known: {', '.join(FORMATS)} (docs/reference/traces.md)",
        file=str(path),
    )


def _known_line(row: dict[str, Any]) -> bool:
    """Whether some format takes lines such as this object."""
    head = Head("lines", frozenset(row), row)
    return any(module_of(name).detect(head) for name in FORMATS)


def _own(head: Head) -> str:
    """The format that takes any names."""
    return "jsonl" if head.kind in ("lines", "object") else "csv"


OWN_NAMES = ("csv", "jsonl")
"""Formats that take `columns` and `unit`."""
MOST_SHOWN = 200
"""Characters of the names of columns that an error repeats."""
NO_TRACES = {
    (
        "aiperf_version",
        "input_config",
    ): "a summary of aiperf; its requests are in profile_export.jsonl beside it",
    (
        "service_kind",
        "experiments",
    ): "an export of GenAI-Perf, which has no token counts; give the trace that it sent",
}
"""Keys of files that are often given instead of a trace, and which file has the requests."""


def read_trace(
    path: str | Path,
    *,
    known_models: Sequence[str],
    granularity: int,
    options: TraceOptions | None = None,
    max_keys: int = 0,
) -> Trace:
    """The requests of a trace in any format, as `options` ask.

    `granularity` is that of content which has no block size of its own (0: none is kept); where
    that takes more than `max_keys` keys, unless it is 0, coarser blocks are taken. Times are ns
    from the first arrival, except in LLMServingSim's format, whose zero is kept. Raises InputError,
    beginning `path:line:column:` where one position is at fault.
    """
    options = options or TraceOptions()
    head = head_of(Path(path))
    name = options.format or (_own(head) if options.columns else detect(str(path), head))
    module = module_of(name)
    for option in ("columns", "unit"):
        if name not in OWN_NAMES and getattr(options, option) is not None:
            raise InputError(
                f'{path}: "{option}" is for a CSV or JSON Lines with names of its own, but this is '
                f"read as {name}; format={_own(head)} reads it as such",
                file=str(path),
            )
    names = ModelNames(known_models, options.models)
    if name == "llmservingsim":
        from llmsim.workload.jsonl import load_trace

        first = 0 if options.changes_workload else options.limit
        workload = load_trace(path, known_models=names, granularity=granularity, limit=first)
        return Trace(
            name,
            selected(workload, options) if options.changes_workload else workload,
            has_handles=False,
        )
    source = Source(str(path), options, names, granularity, max_keys)
    with collections_paused():
        table = module.read(source, head)
        workload = table.workload()
    if options.changes_workload or options.limit:
        workload = selected(workload, options)
    return Trace(name, workload, table.has_handles)


def load(
    path: str | Path, *, known_models: Sequence[str], granularity: int, options: TraceOptions
) -> Workload:
    """`read_trace` for an engine whose KV blocks are multiples of `granularity` tokens, with the
    format in a note.
    """
    trace = read_trace(path, known_models=known_models, granularity=granularity, options=options)
    return replace(trace.at(granularity), notes=trace.workload.notes)
