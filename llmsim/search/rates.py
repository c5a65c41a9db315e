"""Requests per second as a variable: the same trace, slower or faster."""

from collections.abc import Sequence
from functools import lru_cache

from llmsim.config.errors import InputError
from llmsim.workload.dataset import load_dataset
from llmsim.workload.options import PREFIX as TRACE
from llmsim.workload.options import is_trace_text
from llmsim.workload.spec_text import PREFIX as SYNTHETIC

RATE = "rate"
"""The name in `vary` and in `load`."""


def at_rate(dataset: str, rate: float) -> str:
    """The dataset text whose lines arrive at so many per second; what is drawn stays equal.

    A synthetic workload gets the rate; the arrivals of a trace are sped up or slowed down. Raises
    InputError where the trace has no rate of its own.
    """
    if dataset.startswith(SYNTHETIC):
        parts = dataset.removeprefix(SYNTHETIC).split(",")
        kept = [part for part in parts if not part.startswith("rate=")]
        return f"{SYNTHETIC}{','.join([*kept, f'rate={rate!r}'])}"
    if is_trace_text(dataset):
        if ",rate=" in dataset:
            parts = [part for part in dataset.split(",") if not part.startswith("rate=")]
            return f"{','.join(parts)},rate={rate!r}"
        if ",speedup=" in dataset:
            raise InputError(
                f"{dataset} has a speedup, and the search varies the rate; leave the speedup out"
            )
        return f"{dataset},speedup={rate / own_rate(dataset)!r}"
    return f"{TRACE}{dataset},speedup={rate / own_rate(dataset)!r}"


def words_at(words: Sequence[str], rate: float) -> tuple[str, ...]:
    """The words of a command line whose dataset arrives at another rate."""
    option = "--dataset="
    return tuple(
        f"{option}{at_rate(word.removeprefix(option), rate)}" if word.startswith(option) else word
        for word in words
    )


@lru_cache(maxsize=8)
def own_rate(dataset: str) -> float:
    """Lines per second of a trace from its first arrival to its last."""
    workload = load_dataset(dataset, known_models=(), granularity=16)
    arrivals = workload.arrival_ps[workload.arrival_ps >= 0]
    span_s = (int(arrivals.max()) - int(arrivals.min())) / 10**12 if len(arrivals) > 1 else 0.0
    if not span_s:
        raise InputError(
            f"{dataset}: its requests arrive at one time, so it has no rate to change; name a "
            "trace with arrivals, or add rate="
        )
    return (len(arrivals) - 1) / span_s
