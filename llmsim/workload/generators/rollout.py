"""Rollouts of reinforcement learning: bursts of prompts, each sampled several times, with
heavy-tailed answers.
"""

import numpy as np

from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_REQUESTS

KEYS = ("steps", "prompts", "samples", "every_s", "input", "output", "seed")
REQUIRED = ("prompts",)
EXAMPLE = (
    "synthetic:rollout,steps=4,prompts=64,samples=8,every_s=120,output=pareto:1.2:min=500:max=32768"
)


def generate(parts: Parts) -> Workload:
    """`steps` (1) bursts, one every `every_s` (600) seconds from 0, of `prompts` prompts of `input`
    (lognormal:500) tokens, each asked `samples` (8) times at once; answers are `output`
    (pareto:1.2:min=400:max=16384) tokens. A trace cannot make a step wait for the one before it:
    choose `every_s` long enough, or run one step.
    """
    steps, prompts = parts.integer("steps", "1", 1, 1_000_000), parts.integer("prompts", None, 1)
    samples = parts.integer("samples", "8", 1)
    every_s = parts.number("every_s", "600")
    total = steps * prompts * samples
    if total > MAX_REQUESTS:
        raise InputError(f"{parts.text}: {total} requests, but at most {MAX_REQUESTS} are possible")
    asked = parts.lengths("input", "lognormal:500").draw(parts.stream(0), steps * prompts)
    input_tokens = np.repeat(asked, samples)
    output = parts.lengths("output", "pareto:1.2:min=400:max=16384").draw(
        parts.stream(1), len(input_tokens)
    )
    step = np.repeat(np.arange(steps), prompts * samples)
    arrival_ns = np.rint(np.minimum(step * every_s, 1e10) * 1e9).astype(np.int64)
    if parts.granularity == 0:
        return parts.workload(arrival_ns, input_tokens, output, None)
    blocks = asked // parts.granularity
    base = np.repeat(np.cumsum(blocks) - blocks + 1, samples)
    offsets = np.zeros(len(input_tokens) + 1, dtype=np.int64)
    counts = np.repeat(blocks, samples)
    np.cumsum(counts, out=offsets[1:])
    keys = np.arange(offsets[-1]) + np.repeat(base - offsets[:-1], counts)
    return parts.workload(arrival_ns, input_tokens, output, (offsets, keys.astype(np.uint64)))
