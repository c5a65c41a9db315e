"""Which options of a server may differ from what was described, and what of its log says so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.config import EngineArgs
from llmsim.config.engine.schedulers import SGLANG
from llmsim.validation.logs.recording import Float64, Recording

BUDGETS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 32768)
"""Token budgets that vLLM's defaults and its documentation name, and some between them."""
THRESHOLDS = (512, 1024, 2048)
PROFILES = ("vllm-0.8", "vllm-0.11", "vllm-0.19", "vllm-0.33")
"""Releases whose host, defaults or depth of asynchronous scheduling differ most."""
USUAL_SEQS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
PLATEAU_SHARE = 0.1
"""Share of the run that a log spends near its most answers, or its most tokens, at once."""
PLATEAU_WIDTH = 0.02
NEAR = 0.1
"""A full cache swings by this much: a request starts when its whole prompt fits."""
CACHE_OVER_TOKENS = (0.95, 1.0, 1.05)
"""Cache over the tokens that a log shows in it: last blocks are partly empty, and preempted
requests hold none.
"""
SAMPLES, USUAL_PERCENTILE = 400, 90
STEPS = "times of steps and of first tokens"


@dataclass(frozen=True)
class Described:
    """What was described of the server: one of its engines, how many of them answer, and the
    devices that each takes.
    """

    engine: EngineArgs
    num_engines: int = 1
    tensor_parallel_size: int = 1


@dataclass(frozen=True)
class Suspect:
    """An option that may have another value on the server, and what of the log says so."""

    option: str
    value: Any
    evidence: str
    seen: bool = False
    """Whether the log shows the value itself, and not only times that another value would give."""


def suspects(real: Recording, described: Described) -> Iterator[Suspect]:
    """Every option to try, those first for which the log has evidence of its own."""
    engine = described.engine
    yield from _limits(real, described)
    yield from _caches(real, described)
    for budget in BUDGETS:
        if budget != engine.max_num_batched_tokens and budget >= engine.max_num_seqs:
            yield Suspect("max_num_batched_tokens", budget, "waits and bursts of first tokens")
    for option in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"):
        yield Suspect(option, not getattr(engine, option), STEPS)
    yield Suspect("enforce_eager", engine.cuda_graph_sizes != (), "times of small steps")
    for threshold in THRESHOLDS:
        if threshold != engine.long_prefill_token_threshold:
            yield Suspect("long_prefill_token_threshold", threshold, STEPS)
    other_cache = "auto" if engine.kv_cache_dtype == "fp8" else "fp8"
    yield Suspect("kv_cache_dtype", other_cache, "times of long contexts")
    other_weights = "bfloat16" if engine.dtype == "fp8" else "fp8"
    yield Suspect("dtype", other_weights, "times of all steps")
    yield from _machines(described)
    for profile in PROFILES:
        if profile != engine.engine_profile and engine.scheduler != SGLANG:
            yield Suspect("engine_profile", profile, STEPS)


def _limits(real: Recording, described: Described) -> Iterator[Suspect]:
    """Values of max_num_seqs at which answers are written for a while."""
    engine, engines = described.engine, described.num_engines
    given = engine.max_num_seqs
    counts = answers_at_once(real)
    most = counts.most
    if counts.share >= PLATEAU_SHARE:
        said = f"the log writes {counts.level} answers at once for {100 * counts.share:.0f} % of "
        levels = dict.fromkeys((most, counts.level, *_usual_near(counts.level)))
        for level in dict.fromkeys(round(level / engines) for level in levels):
            if level not in (0, given):
                yield Suspect("max_num_seqs", level, f"{said}its time", seen=True)
    if most > given * engines:
        said = f"the log writes up to {most} answers at once"
        yield Suspect("max_num_seqs", 1 << (-(-most // engines) - 1).bit_length(), said, seen=True)


def _usual_near(level: int) -> list[int]:
    """Values that people give, near a number that stamps with noise show."""
    return [one for one in USUAL_SEQS if abs(one - level) <= max(1, 0.06 * level)]


def _caches(real: Recording, described: Described) -> Iterator[Suspect]:
    """Numbers of KV blocks that the log seems to fill; whether it does, simulations say."""
    most, usual, near = tokens_at_once(real)
    if not usual:
        return
    said = f"the log holds about {usual} tokens of KV for {100 * near:.0f} % of its time"
    tokens = [over * most for over in CACHE_OVER_TOKENS]
    tokens += [over * usual for over in CACHE_OVER_TOKENS if over * usual < 0.98 * tokens[0]]
    for held in tokens:
        blocks = round(held / described.engine.block_size / described.num_engines) + 1
        yield Suspect("num_gpu_blocks_override", blocks, said, seen=near >= PLATEAU_SHARE)


def _machines(described: Described) -> Iterator[Suspect]:
    """Other numbers of devices: twice and half of them, and a second instance."""
    width = described.tensor_parallel_size
    said = "times of all steps"
    yield Suspect("tensor_parallel_size", 2 * width, said)
    if width > 1:
        yield Suspect("tensor_parallel_size", width // 2, said)
    if described.num_engines == 1:
        yield Suspect("num_instances", 2, "answers at once and their times")


@dataclass(frozen=True)
class Counts:
    """How many answers a log writes at once: the most, the level where it stays, and for which
    share of its time it is near that level.
    """

    most: int
    level: int
    share: float


def answers_at_once(real: Recording) -> Counts:
    """The plateau of the answers between first and last token; stamps of clients shake it, so that
    the level is where a log is longest, among the upper levels.
    """
    if not real.has_arrivals or not len(real):
        return Counts(0, 0, 0.0)
    begins_s, ends_s = real.arrival_s + real.ttft_s, real.arrival_s + real.latency_s
    times_s = np.concatenate([begins_s, ends_s])
    changes = np.repeat(np.array([1, -1]), len(real))
    order = np.lexsort((changes, times_s))  # who ends makes room for who begins at the same time
    running = np.maximum(np.cumsum(changes[order]), 0)
    lengths_s = np.diff(times_s[order], append=times_s[order][-1:])
    spent_s = np.bincount(running, weights=np.maximum(lengths_s, 0.0)).astype(np.float64)
    return _plateau(spent_s)


def _plateau(spent_s: Float64) -> Counts:
    """From the seconds that a log spends at each number of answers."""
    total_s, most = float(spent_s.sum()), len(spent_s) - 1
    if total_s <= 0 or most < 1:
        return Counts(most, most, 0.0)
    levels = np.arange(len(spent_s))
    width = np.maximum(1, np.floor(PLATEAU_WIDTH * levels)).astype(np.int64)
    reached = np.concatenate([[0.0], np.cumsum(spent_s)])
    near_s = reached[levels + 1] - reached[np.maximum(levels + 1 - width, 0)]
    upper = levels > 0.8 * most
    level = int(np.where(upper, near_s, -1.0).argmax())
    above_s = total_s - float(reached[level + 1])
    share = float(near_s[level]) / total_s
    return Counts(most, level, share if above_s <= share * total_s else 0.0)


def tokens_at_once(real: Recording) -> tuple[int, int, float]:
    """(most tokens of prompts and answers held at one time, those that a tenth of the run exceeds,
    share of the run near that number); zeros where the log does not say.
    """
    if not real.has_arrivals or not len(real) or (real.input_tokens < 0).any():
        return 0, 0, 0.0
    begin = real.arrival_s + real.ttft_s
    end = real.arrival_s + real.latency_s
    times = np.linspace(float(begin.min()), float(end.max()), SAMPLES)
    held = np.zeros(SAMPLES)
    columns: Sequence[Any] = (begin, end, real.input_tokens, real.output_tokens)
    for first, last, prompt, answer in zip(*columns, strict=True):
        inside = (times >= first) & (times < last)
        grown = (times[inside] - first) / max(last - first, 1e-9)
        held[inside] += prompt + answer * grown
    usual = float(np.percentile(held, USUAL_PERCENTILE))
    near = float((np.abs(held - usual) <= NEAR * usual).mean())
    return int(held.max()), int(usual), near
