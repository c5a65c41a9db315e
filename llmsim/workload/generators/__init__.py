"""Kinds of synthetic workloads beyond plain requests: `synthetic:KIND,key=value,...`, each a module
of its own.
"""

import importlib
from collections.abc import Sequence

from llmsim.config.errors import InputError, nearest
from llmsim.core import Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.spec_text import PREFIX, split_fields

KINDS = ("clients", "agentic", "reasoning", "rollout", "tree")


def kind_of(text: str) -> str | None:
    """The kind that a specification names before its first comma, or None for plain requests."""
    word = text.removeprefix(PREFIX).split(",")[0]
    return None if "=" in word or not word else word


def generate_kind(
    text: str, *, known_models: Sequence[str], granularity: int, limit: int = 0
) -> Workload:
    """The workload of `synthetic:KIND,...`; `limit` keeps the first lines (0: all). Raises
    InputError.
    """
    kind = kind_of(text)
    if kind not in KINDS:
        raise InputError(
            f'{text}: unknown kind "{kind}"{nearest(str(kind), KINDS)}; known: {", ".join(KINDS)}'
        )
    module = importlib.import_module(f"llmsim.workload.generators.{kind}")
    given = split_fields(
        text, text.removeprefix(PREFIX).split(",")[1:], module.KEYS, module.REQUIRED, module.EXAMPLE
    )
    parts = Parts(text, given, known_models, granularity)
    workload: Workload = module.generate(parts)
    if limit:
        from llmsim.workload.options import TraceOptions
        from llmsim.workload.selection import selected

        workload = selected(workload, TraceOptions(limit=limit))
    return workload
