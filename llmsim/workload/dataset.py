"""Turns the text a user gives as dataset, a path or a `synthetic:` specification, into a workload."""

from collections.abc import Sequence

from llmsim.core import Workload
from llmsim.workload.jsonl import load_trace
from llmsim.workload.spec_text import is_synthetic, parse_synthetic
from llmsim.workload.synthetic import generate


def load_dataset(text: str, *, known_models: Sequence[str], granularity: int, limit: int = 0) -> Workload:
    """The workload that `text` names; `limit` keeps the first lines only (0: all; a session is one line).

    Raises InputError for anything wrong with the file or the specification.
    """
    if not is_synthetic(text):
        return load_trace(text, known_models=known_models, granularity=granularity, limit=limit)
    spec = parse_synthetic(text)
    return generate(spec, known_models=known_models, granularity=granularity, limit=limit)
