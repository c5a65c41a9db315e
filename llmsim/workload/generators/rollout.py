"""Rollouts of reinforcement learning: bursts of prompts, each sampled several times, with
heavy-tailed answers.
"""

import numpy as np

from llmsim.config.errors import InputError
from llmsim.core import Int64, Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_REQUESTS

KEYS = (
    "n",
    "groups",
    "tail",
    "tail_output",
    "prompt",
    "steps",
    "prompts",
    "samples",
    "every_s",
    "input",
    "output",
    "seed",
)
REQUIRED = ()
EXAMPLE = (
    "synthetic:rollout,n=4000,groups=8,tail=0.05,output=lognormal:600,tail_output=lognormal:6000"
)
SAME = (("groups", "samples"), ("prompt", "input"), ("n", "prompts"))
"""Keys of which one is enough: answers for each prompt, its length, and how many there are."""


def generate(parts: Parts) -> Workload:
    """`steps` (1) bursts, one every `every_s` (600) seconds from 0, of `n` requests in groups of
    `groups` (8) with the same prompt of `prompt` (lognormal:500) tokens; answers are `output`
    (pareto:1.2:min=400:max=16384) tokens, and of a share `tail` (0) of them, drawn at random,
    `tail_output` tokens. `prompts`, `samples` and `input` are other names: n = prompts x samples. A
    trace cannot make a step wait for the one before it: choose `every_s` long enough, or run one
    step.
    """
    steps, prompts, samples = _sizes(parts)
    every_s = parts.number("every_s", "600")
    total = steps * prompts * samples
    if total > MAX_REQUESTS:
        raise InputError(f"{parts.text}: {total} requests, but at most {MAX_REQUESTS} are possible")
    key = "prompt" if parts.given("prompt") else "input"
    asked = parts.lengths(key, "lognormal:500").draw(parts.stream(0), steps * prompts)
    input_tokens = np.repeat(asked, samples)
    output = _answers(parts, len(input_tokens))
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


def _sizes(parts: Parts) -> tuple[int, int, int]:
    """Bursts, prompts of each, and answers to each prompt."""
    for names in SAME:
        given = parts.given(*names)
        if len(given) == 2:
            raise InputError(f"{parts.text}: {' and '.join(given)} say the same; give one of them")
    if not parts.given("n", "prompts"):
        raise InputError(f"{parts.text}: n is missing, the number of requests; example: {EXAMPLE}")
    samples = parts.integer("groups" if parts.given("groups") else "samples", "8", 1)
    steps = parts.integer("steps", "1", 1, 1_000_000)
    if not parts.given("n"):
        return steps, parts.integer("prompts", None, 1), samples
    n = parts.integer("n", None, 1)
    if n % samples:
        raise InputError(
            f"{parts.text}: n is {n}; it must be a multiple of the {samples} answers to a prompt"
        )
    return steps, n // samples, samples


def _answers(parts: Parts, count: int) -> Int64:
    """Tokens of every answer; those of the tail are drawn apart, so that the others stay."""
    output = parts.lengths("output", "pareto:1.2:min=400:max=16384").draw(parts.stream(1), count)
    given = parts.given("tail", "tail_output")
    if not given:
        return output
    if len(given) == 1:
        missing = "tail_output" if given == ["tail"] else "tail"
        raise InputError(f"{parts.text}: {given[0]} is given without {missing}; give both")
    share = parts.number("tail", None, most=1.0)
    chosen = parts.stream(2).permutation(count)[: round(share * count)]
    output[chosen] = parts.lengths("tail_output", None).draw(parts.stream(3), len(chosen))
    return output
