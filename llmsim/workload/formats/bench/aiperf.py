"""aiperf's profile_export.jsonl: one record per request sent, with its start (ns) and its measured
lengths.

A record without an input length, such as a cancelled one, counts as a request without tokens.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from llmsim.plurals import plural
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_lines
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table


class Metadata(msgspec.Struct, gc=False):
    request_start_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    x_request_id: str | None = None
    x_correlation_id: str | None = None
    turn_index: int | None = None
    benchmark_phase: str = "profiling"


class Length(msgspec.Struct, gc=False):
    value: Annotated[float, Meta(ge=0, le=2**31)]


class Metrics(msgspec.Struct, gc=False):
    input_sequence_length: Length | None = None
    output_sequence_length: Length | None = None
    output_token_count: Length | None = None


class Record(msgspec.Struct, gc=False):
    metadata: Metadata
    metrics: Metrics | None = None
    error: Any = None


NO_METRICS = Metrics()


def detect(head: Head) -> bool:
    return head.kind in ("lines", "object") and head.has("metadata", "metrics")


def read(source: Source, head: Head) -> Table:
    table = Table(source, labels=True)
    warm_up = 0
    for number, record in json_lines(table, Record):
        about, metrics = record.metadata, record.metrics or NO_METRICS
        if about.benchmark_phase != "profiling":
            warm_up += 1
            continue
        output = metrics.output_sequence_length or metrics.output_token_count
        added = table.add(
            number,
            about.request_start_ns,
            _tokens(metrics.input_sequence_length),
            _tokens(output),
            session=about.x_correlation_id if about.turn_index is not None else None,
        )
        if added:
            table.detail(request_id=about.x_request_id)
    if warm_up:
        requests = plural(warm_up, "request of the warm-up is", "requests of the warm-up are")
        table.notes.append(f"{source.path}: {warm_up} {requests} left out")
    return table


def _tokens(length: Length | None) -> int:
    return 0 if length is None else round(length.value)
