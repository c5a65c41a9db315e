"""Turns the text a user gives as dataset (a path, `trace:PATH,...` or `synthetic:...`) into a
workload.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.workload.jsonl import is_own_format, load_trace
from llmsim.workload.options import SYNTHETIC, TraceOptions, is_trace_text, parse_trace_text


def file_of(text: str) -> list[str]:
    """The file that a dataset is read from, also with options (`trace:FILE,...`); none for a
    generator.
    """
    if text.startswith(SYNTHETIC):
        return []
    return [parse_trace_text(text)[0] if is_trace_text(text) else text]


def load_dataset(
    text: str, *, known_models: Sequence[str], granularity: int, limit: int = 0
) -> Workload:
    """The workload that `text` names; `limit` keeps the first lines only (0: all; a session is one
    line).

    Raises InputError for anything wrong with the file or the specification.
    """
    if limit < 0:
        raise InputError(f"the number of requests to read is {limit}, but must be 0 (all) or more")
    if text.startswith(SYNTHETIC):
        from llmsim.workload.spec_text import parse_synthetic
        from llmsim.workload.synthetic.workload import generate

        if "=" not in text.removeprefix(SYNTHETIC).split(",")[0]:
            from llmsim.workload.generators import generate_kind, kind_of

            if kind_of(text):
                return generate_kind(
                    text, known_models=known_models, granularity=granularity, limit=limit
                )
        spec = parse_synthetic(text)
        return generate(spec, known_models=known_models, granularity=granularity, limit=limit)
    path, options = parse_trace_text(text) if is_trace_text(text) else (text, TraceOptions())
    options = replace(options, limit=min(options.limit or limit, limit or options.limit))
    if options == TraceOptions(limit=options.limit) and is_own_format(path):
        return load_trace(
            path, known_models=known_models, granularity=granularity, limit=options.limit
        )
    from llmsim.workload.formats import load

    return load(path, known_models=known_models, granularity=granularity, options=options)
