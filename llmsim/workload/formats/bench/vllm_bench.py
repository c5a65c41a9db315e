"""The JSON result of `vllm bench serve --save-result --save-detailed`: the requests that were sent,
as a trace.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from llmsim.config.files.reading import MAX_WHOLE_BYTES, too_large
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_error, scaled_ns, with_integers
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table
from llmsim.workload.open_trace import opened

Count = Annotated[int, Meta(ge=0)]


class Result(msgspec.Struct):
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    start_times: list[float] | None = None
    errors: list[str | None] | None = None


def detect(head: Head) -> bool:
    return head.kind == "object" and (
        head.has("input_lens")
        or head.has("total_input_tokens", "request_throughput", "output_throughput")
    )


def read(source: Source, head: Head) -> Table:
    table = Table(source)
    table.unit = "request"
    with opened(Path(source.path)) as stream:
        data = stream.read(MAX_WHOLE_BYTES + 1)
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(Path(source.path))
    try:
        result = msgspec.json.Decoder(Result).decode(data.lstrip(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        again = with_integers(Result, data)
        if again is None:
            raise json_error(source.path, 1, data, error) from None
        result = again
    if result.input_lens is None or result.output_lens is None:
        raise table.refusal(
            1,
            (
                '"input_lens" and "output_lens" are missing; vllm bench serve writes them with '
                "--save-detailed"
            ),
        )
    n = len(result.input_lens)
    for name, values in (("output_lens", result.output_lens), ("start_times", result.start_times)):
        if values is not None and len(values) != n:
            raise table.refusal(
                1, f'"{name}" has {len(values)} values, but "input_lens" has {n}: they must agree'
            )
    times = result.start_times
    if times is None:
        times = [0.0] * n
        if source.options.rate is None:
            table.say("no start_times, so all requests arrive at once; rate= spreads them")
    # Only differences count: a monotonic clock is in the file, and its offset would cost digits.
    begin = min(times, default=0.0)
    for index, (at_s, tokens_in, tokens_out) in enumerate(
        zip(times, result.input_lens, result.output_lens, strict=True)
    ):
        at_ns = scaled_ns(table, index + 1, at_s - begin, 10**9, "start_times")
        table.add(index + 1, at_ns, tokens_in, tokens_out)
    return table
