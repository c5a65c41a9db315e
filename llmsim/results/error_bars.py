"""Intervals that hold the real figures of nine in ten published systems, beside those of a run.

They are learnt by `evaluation/measured.sh --error-bars` from systems that were simulated from the
silicon database with nothing fitted, so that they belong to runs whose times come from there.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from llmsim.config.files import input_files
from llmsim.core import TimeShare
from llmsim.costs.confidence import BY_DATA_SHEETS
from llmsim.presets import PRESETS_DIR

LEARNT_FROM = "aiconfigurator-core"
"""How the sources of the times begin with which the systems were simulated."""
FIGURES = {"output_throughput": "tok/s", "mean_ttft_ms": "ms TTFT", "mean_tpot_ms": "ms TPOT"}
QUEUED_SHARE = 0.5
"""The share of the mean TTFT from which on waiting in the engine's queue decides it."""
EXPERTS = "moe"
"""The operator of grouped experts."""
_DIGITS = 6


def kind_of(waited: float | None, ttft: float | None, *, experts: bool) -> str:
    """The kind of published runs that the run is like: `experts` or `dense` by its models, and
    `queued` where waiting in the engine's queue is most of the mean time to the first token, else
    `unqueued`.

    A busy engine hides what its host takes, and its throughput decides the first tokens: such runs
    are nearer to their real systems. So are those of dense models, of whose kernels releases have
    changed less, and which no router's preferences speed up or slow down.
    """
    queued = waited is not None and ttft is not None and waited > QUEUED_SHARE * ttft
    return f"{'experts' if experts else 'dense'}_{'queued' if queued else 'unqueued'}"


def has_experts(operators: Iterable[str]) -> bool:
    """Whether grouped experts are among the operators of a run."""
    return EXPERTS in operators


@cache
def learnt() -> Mapping[str, Any]:
    """The file: for each figure its points, its coverage, and for each kind of runs the interval of
    real over simulated.
    """
    found: dict[str, Any] = json.loads(input_files.read_text(PRESETS_DIR / "error_bars.json"))
    return found


def system_error(
    block: Mapping[str, Any], unlike: Sequence[str] = (), asked_tok_s: float | None = None
) -> tuple[dict[str, Any] | None, str]:
    """The interval of each figure of a summary, and why there is none.

    `unlike` names features that no published system has. `asked_tok_s` is the throughput of a
    server that answers every request as it arrives: none is faster. Without most times from the
    silicon database nobody expects an interval, and the reason is empty.
    """
    known = database_share(block["sources"]["by_source"])
    if known <= 0.5:
        return None, ""
    own = database_share(block["sources"]["by_source"], own_device=True)
    bars = learnt()
    if unlike:
        return None, f"no published system has {' or '.join(unlike)}"
    if own < bars["least_share"]:
        return None, (
            f"{100 * own:.1f} % of the times are measured on this device, and "
            f"{100 * bars['least_share']:g} % or more of each published system's"
        )
    experts = has_experts(one["operator"] for one in block["sources"]["operators"])
    kind = kind_of(block["blame"]["queue"]["mean_ms"], block["mean_ttft_ms"], experts=experts)
    found: dict[str, Any] = {"level": bars["level"], "kind": kind}
    for name in FIGURES:
        value, bar = block[name], bars["figures"][name]
        if value is None:
            continue
        edges = bar["kinds"][kind]
        high = value * edges["high"]
        if name == "output_throughput" and asked_tok_s is not None:
            high = min(high, asked_tok_s)
        found[name] = {
            "low": round(value * edges["low"], _DIGITS),
            "high": round(high, _DIGITS),
            "points": edges["points"],
            "covered": edges["covered"],
        }
    return found, ""


def database_share(by_source: Mapping[str, float | None], *, own_device: bool = False) -> float:
    """Share of the busy time from the silicon database; `own_device`: from its own tables there,
    not from those of a similar device.
    """
    return sum(
        share or 0.0
        for source, share in by_source.items()
        if LEARNT_FROM in source and not (own_device and source.endswith(BY_DATA_SHEETS))
    )


def own_device_share(shares: Sequence[TimeShare]) -> float:
    """Share of a run's busy time from tables of its own devices."""
    total_ps = sum(sum(one.ps_by_provenance) for one in shares)
    if not total_ps:
        return 0.0
    by_source: Counter[str] = Counter()
    for one in shares:
        by_source[one.source] += sum(one.ps_by_provenance)
    return database_share(by_source, own_device=True) / total_ps


def shown(error: Mapping[str, Any]) -> str:
    """`580 to 1,900 tok/s, 12 to 70 ms TTFT, 6 to 12 ms TPOT (means)`."""
    parts = [f"{between(error, name)} {unit}" for name, unit in FIGURES.items() if name in error]
    return f"{', '.join(parts)} (means)"


def between(error: Mapping[str, Any], name: str) -> str:
    """`12 to 70`."""
    return f"{_number(error[name]['low'])} to {_number(error[name]['high'])}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
