"""Agents: sessions of many calls, each prompt repeating the session, with a tool's result and its
run time in between.
"""

import numpy as np

from llmsim.core import Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_TOKENS
from llmsim.workload.synthetic.workload import SharedPrefixes, arrivals_ns, content_of, rows_of

KEYS = (
    "n",
    "rate",
    "arrivals",
    "calls",
    "system",
    "prompt",
    "tool",
    "output",
    "tool_ms",
    "context",
    "seed",
)
REQUIRED = ("n",)
EXAMPLE = (
    "synthetic:agentic,n=200,rate=0.5,calls=lognormal:12,system=6000,"
    "tool=lognormal:900,tool_ms=lognormal:2500:cv=2"
)


def generate(parts: Parts) -> Workload:
    """n sessions of `calls` (lognormal:12) calls. All begin with the same `system` (4000) tokens,
    then `prompt` (lognormal:400) of their own; every later call adds a tool's result, `tool`
    (lognormal:800) tokens, and comes `tool_ms` (lognormal:2500:cv=2, heavy-tailed) after the answer
    of `output` (lognormal:150) tokens before it. A session ends before the call that would exceed
    `context` (131072) tokens; its first call is cut to fit.
    """
    n, system = parts.integer("n", None, 1), parts.integer("system", "4000", 0, MAX_TOKENS)
    context = parts.integer("context", "131072", system + 2, MAX_TOKENS)
    calls = parts.lengths("calls", "lognormal:12").draw(parts.stream(0), n)
    rows = rows_of(calls, parts.text)
    heads = np.cumsum(calls) - calls
    new_tokens = parts.lengths("tool", "lognormal:800").draw(parts.stream(1), rows)
    new_tokens[heads] = system + parts.lengths("prompt", "lognormal:400").draw(parts.stream(2), n)
    output = parts.lengths("output", "lognormal:150").draw(parts.stream(3), rows)
    new_tokens[heads] = np.minimum(new_tokens[heads], context - 1)
    output[heads] = np.minimum(output[heads], context - new_tokens[heads])
    tool_ms = parts.lengths("tool_ms", "lognormal:2500:cv=2", 0).draw(parts.stream(4), rows)
    said = np.cumsum(new_tokens + output)
    said -= np.repeat(said[heads] - new_tokens[heads] - output[heads], calls)
    kept = said <= context
    line = np.repeat(np.arange(n), calls)[kept]
    calls = np.bincount(line, minlength=n)
    arrival = np.full(len(line), -1, dtype=np.int64)
    arrival[np.cumsum(calls) - calls] = arrivals_ns(
        parts.arrivals(), n, parts.text, parts.stream(5)
    )
    prefixes = SharedPrefixes(1, system) if system else None
    content = content_of(
        prefixes, parts.granularity, np.zeros(n, dtype=np.int64), calls, said[kept]
    )
    names = [f"session-{number}" for number in line.tolist()]
    return parts.workload(
        arrival,
        (said - output)[kept],
        output[kept],
        content,
        tool_ms=tool_ms[kept],
        session_id=names,
    )
