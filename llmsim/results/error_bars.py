"""Intervals that hold the real figures of nine in ten published systems, beside those of a run.

They are learnt by `evaluation/measured.sh --error-bars` from systems that were simulated from the
silicon database with nothing fitted, so that they belong to runs whose times come from there.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from llmsim.config import input_files
from llmsim.presets import PRESETS_DIR

LEARNT_FROM = "aiconfigurator-core"
"""How the sources of the times begin with which the systems were simulated."""
FIGURES = {"output_throughput": "tok/s", "mean_ttft_ms": "ms TTFT", "mean_tpot_ms": "ms TPOT"}
_DIGITS = 6


@cache
def learnt() -> Mapping[str, Any]:
    """The file: for each figure the interval of real over simulated, its points, its coverage."""
    found: dict[str, Any] = json.loads(input_files.read_text(PRESETS_DIR / "error_bars.json"))
    return found


def system_error(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """The interval of each figure of a summary; None where most times are from elsewhere."""
    shares = block["sources"]["by_source"]
    known = sum(share or 0.0 for source, share in shares.items() if LEARNT_FROM in source)
    if known <= 0.5:
        return None
    bars = learnt()
    found: dict[str, Any] = {"level": bars["level"]}
    for name in FIGURES:
        value, bar = block[name], bars["figures"][name]
        if value is None:
            continue
        found[name] = {
            "low": round(value * bar["low"], _DIGITS),
            "high": round(value * bar["high"], _DIGITS),
            "points": bar["points"],
            "covered": bar["covered"],
        }
    return found


def shown(error: Mapping[str, Any]) -> str:
    """`580 to 1,900 tok/s, 12 to 70 ms TTFT, 6 to 12 ms TPOT (means)`."""
    parts = [f"{between(error, name)} {unit}" for name, unit in FIGURES.items() if name in error]
    return f"{', '.join(parts)} (means)"


def between(error: Mapping[str, Any], name: str) -> str:
    """`12 to 70`."""
    return f"{_number(error[name]['low'])} to {_number(error[name]['high'])}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
