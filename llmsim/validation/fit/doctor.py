"""Finds the engine option that would explain a log which the described deployment contradicts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.config import EngineArgs
from llmsim.config.errors import LlmsimError
from llmsim.validation.compare.compare import Comparison, compare
from llmsim.validation.compare.mismatch import most_at_once
from llmsim.validation.logs.recording import Finding, Recording

SimulateWith = Callable[[Mapping[str, Any]], Recording]
"""Simulates with some engine options changed; raises LlmsimError where they contradict others."""

BUDGETS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Token budgets that vLLM's defaults and its documentation name."""
SICK_PERCENT = 4.0
"""Error of a simulation from which its options are doubted: cost tables alone err by less."""
EXPLAINS = 0.5
"""An option is named if it halves the error, and takes more off it than any constant."""
PLATEAU_SHARE = 0.1
"""Share of the run that a log spends near its most answers, or its most tokens, at once."""
NEAR = 0.1
"""A full cache swings by this much: a request starts when its whole prompt fits."""
CACHE_OVER_TOKENS = (0.95, 1.0, 1.05)
"""Cache over the tokens that a log shows in it: last blocks are partly empty, and preempted
requests hold none.
"""
SAMPLES = 400


@dataclass(frozen=True)
class Suspect:
    """An option that may have another value on the server, and what of the log says so."""

    option: str
    value: Any
    evidence: str


@dataclass(frozen=True)
class Diagnosis:
    """The option that explains the log best: the error with it and without, percent."""

    suspect: Suspect
    before: float
    after: float

    @property
    def finding(self) -> Finding:
        """The diagnosis as a finding of a comparison."""
        one = self.suspect
        sentence = (
            f"{one.option} {_shown(one.value)} would explain the log: the mean error of TTFT, TPOT "
            f"and latency goes from {self.before:.1f} to {self.after:.1f} % ({one.evidence})"
        )
        return Finding("option", True, sentence)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def score(comparison: Comparison) -> float:
    """How far a simulation is from a log, percent: means and single requests, TTFT included."""
    errors = comparison.errors()
    means = [abs(errors[f"mean_{name}"]) for name in ("ttft", "tpot", "latency")]
    paired = [errors[f"paired_mape_{name}"] for name in ("tpot", "latency")]
    return float(np.nanmean([*means, *paired]))


def diagnose(
    real: Recording,
    simulate: SimulateWith,
    engine: EngineArgs,
    skip_seconds: float,
    with_constants: float = np.inf,
) -> Diagnosis | None:
    """The option whose other value explains the log; None where none does.

    `with_constants` is the score of the best calibration: an option must explain more.
    """
    if with_constants < SICK_PERCENT:
        return None
    before = score(compare(real, simulate({}), skip_seconds))
    if before < SICK_PERCENT:
        return None
    found: list[tuple[float, int, Suspect]] = []
    for number, suspect in enumerate(suspects(real, engine)):
        try:
            after = score(compare(real, simulate({suspect.option: suspect.value}), skip_seconds))
        except LlmsimError:
            continue
        found.append((after, number, suspect))
    if not found:
        return None
    after, _, suspect = min(found, key=lambda one: one[:2])
    if after > EXPLAINS * before or after >= with_constants:
        return None
    return Diagnosis(suspect, before, after)


def suspects(real: Recording, engine: EngineArgs) -> Iterator[Suspect]:
    """Every option to try, those first for which the log has evidence of its own."""
    most, share = most_at_once(real)
    if share >= PLATEAU_SHARE and most != engine.max_num_seqs:
        said = f"the log writes {most} answers at once for {100 * share:.0f} % of its time"
        yield Suspect("max_num_seqs", most, said)
    elif most > engine.max_num_seqs:
        said = f"the log writes up to {most} answers at once"
        yield Suspect("max_num_seqs", 1 << (most - 1).bit_length(), said)
    tokens, held = most_tokens(real)
    if held >= PLATEAU_SHARE:
        said = f"the log holds about {tokens} tokens of KV for {100 * held:.0f} % of its time"
        for over in CACHE_OVER_TOKENS:
            blocks = round(over * tokens / engine.block_size) + 1
            yield Suspect("num_gpu_blocks_override", blocks, said)
    for budget in BUDGETS:
        if budget != engine.max_num_batched_tokens and budget >= engine.max_num_seqs:
            yield Suspect("max_num_batched_tokens", budget, "waits and bursts of first tokens")
    for option in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"):
        yield Suspect(option, not getattr(engine, option), "times of steps and of first tokens")
    yield Suspect("enforce_eager", engine.cuda_graph_sizes != (), "times of small steps")


def most_tokens(real: Recording) -> tuple[int, float]:
    """(most tokens of prompts and answers held at one time, share of the run near that number)."""
    if not real.has_arrivals or not len(real) or (real.input_tokens < 0).any():
        return 0, 0.0
    begin = real.arrival_s + real.ttft_s
    end = real.arrival_s + real.latency_s
    times = np.linspace(float(begin.min()), float(end.max()), SAMPLES)
    held = np.zeros(SAMPLES)
    columns: Sequence[Any] = (begin, end, real.input_tokens, real.output_tokens)
    for first, last, prompt, answer in zip(*columns, strict=True):
        inside = (times >= first) & (times < last)
        grown = (times[inside] - first) / max(last - first, 1e-9)
        held[inside] += prompt + answer * grown
    most = float(held.max())
    return int(most), float((held >= (1 - NEAR) * most).mean())
