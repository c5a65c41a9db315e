"""Draws a comparison: distributions, request against request, and the run over time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.export.files import check_writable_folder
from llmsim.validation.compare.compare import Comparison
from llmsim.validation.logs.recording import Float64, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REAL, SIMULATED = "#444444", "#d1603d"
LABELS = {"ttft": "TTFT (s)", "tpot": "TPOT (ms)", "itl": "ITL (ms)", "latency": "latency (s)"}
SCALES = {"ttft": 1.0, "tpot": 1e3, "itl": 1e3, "latency": 1.0}
BAND = 0.1
"""Half width of the shaded band around equality."""


def write_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes cdf.png, scatter.png and, where arrivals are known, time.png into `folder`; returns
    their paths.

    Raises InputError where matplotlib is not installed or the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "--plots needs matplotlib; install it with `pip install matplotlib`"
        ) from None
    target = check_writable_folder(folder)
    figures: dict[str, Figure] = {
        "cdf.png": Figure(figsize=(10, 6.4)),
        "scatter.png": Figure(figsize=(11.5, 4)),
    }
    _distributions(figures["cdf.png"], comparison)
    _scatter(figures["scatter.png"], comparison)
    if comparison.totals:
        figures["time.png"] = Figure(figsize=(10, 8))
        _over_time(figures["time.png"], comparison.pairs.real, comparison.pairs.simulated)
    for name, figure in figures.items():
        figure.savefig(target / name, dpi=150, bbox_inches="tight")
    return [target / name for name in figures]


def _style(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _columns(recording: Recording) -> dict[str, Float64 | None]:
    return {
        "ttft": recording.ttft_s,
        "tpot": recording.tpot_s,
        "latency": recording.latency_s,
        "itl": recording.itl_s,
    }


def _distributions(figure: "Figure", comparison: Comparison) -> None:
    real, simulated = _columns(comparison.pairs.real), _columns(comparison.pairs.simulated)
    names = list(comparison.statistics)
    columns = 2 if len(names) > 3 else len(names)
    if columns == 3:
        figure.set_size_inches(11.5, 3.8)
    grid: Any = figure.subplots((len(names) + columns - 1) // columns, columns, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        most = 0.0
        for values, color, label, width in (
            (real[name], REAL, "recorded", 2.4),
            (simulated[name], SIMULATED, "simulated", 1.4),
        ):
            assert values is not None
            ordered = np.sort(values[~np.isnan(values)]) * SCALES[name]
            most = max(most, float(np.percentile(ordered, 99.5)) if name == "itl" else 0.0)
            axes.step(
                ordered,
                np.arange(1, len(ordered) + 1) / len(ordered),
                color=color,
                lw=width,
                label=label,
            )
        axes.set(
            xlabel=LABELS[name],
            ylabel="share of tokens" if name == "itl" else "share of requests",
            ylim=(0, 1),
        )
        if most:  # the last of many thousand tokens would squeeze all others
            axes.set_xlim(0, 1.3 * most)
        _style(axes)
    grid.flat[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()


def _scatter(figure: "Figure", comparison: Comparison) -> None:
    real, simulated = _columns(comparison.pairs.real), _columns(comparison.pairs.simulated)
    names = list(comparison.paired)
    arrival = comparison.pairs.real.arrival_s
    cold = np.nan_to_num(arrival, nan=np.inf) < comparison.skip_seconds
    grid: Any = figure.subplots(1, len(names), squeeze=False)
    for axes, name in zip(grid.flat, names, strict=True):
        x, y = real[name], simulated[name]
        assert x is not None and y is not None
        x, y = x * SCALES[name], y * SCALES[name]
        valid = (x > 0) & (y > 0)
        if not valid.any():
            continue
        low, high = (
            float(min(x[valid].min(), y[valid].min())),
            float(max(x[valid].max(), y[valid].max())),
        )
        line = np.array([low, high])
        axes.fill_between(
            line, line * (1 - BAND), line * (1 + BAND), color="#eeeeee", lw=0, label="within 10 %"
        )
        axes.plot(line, line, color="#999999", lw=0.8)
        axes.scatter(
            x[valid & ~cold],
            y[valid & ~cold],
            s=9,
            color=SIMULATED,
            alpha=0.6,
            lw=0,
            label="requests",
        )
        if (valid & cold).any():
            label = f"first {comparison.skip_seconds:g} s (left out)"
            axes.scatter(
                x[valid & cold],
                y[valid & cold],
                s=14,
                facecolors="none",
                edgecolors=REAL,
                lw=0.7,
                label=label,
            )
        if high > 20 * low:
            axes.set(xscale="log", yscale="log")
        axes.set(xlabel=f"recorded {LABELS[name]}", ylabel=f"simulated {LABELS[name]}")
        axes.set_title(f"mean absolute error {comparison.paired[name].mape:.1f} %", fontsize=10)
        _style(axes)
    grid.flat[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()


def _over_time(figure: "Figure", real: Recording, simulated: Recording) -> None:
    """Output throughput and requests in the system per second, and TTFT by arrival."""
    grid: Any = figure.subplots(3, 1, sharex=True)
    end = max(real.makespan_s, simulated.makespan_s)
    seconds = np.arange(0.0, np.ceil(end) + 1)
    for recording, color, label, width in (
        (real, REAL, "recorded", 2.4),
        (simulated, SIMULATED, "simulated", 1.4),
    ):
        centres = seconds[:-1] + 0.5
        grid[0].plot(centres, _tokens_per_s(recording, seconds), color=color, lw=width, label=label)
        grid[1].plot(centres, _in_system(recording, centres), color=color, lw=width)
        grid[2].scatter(recording.arrival_s, recording.ttft_s, s=10, color=color, alpha=0.7, lw=0)
    grid[0].set_ylabel("output tokens/s\n(each answer spread evenly)")
    grid[1].set_ylabel("requests in the system")
    grid[2].set(xlabel="time since the first arrival (s)", ylabel="TTFT (s), by arrival")
    grid[0].legend(frameon=False)
    for axes in grid:
        _style(axes)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, end)
    figure.tight_layout()


def _tokens_per_s(recording: Recording, edges: Float64) -> Float64:
    """Tokens in each bin, those of one answer spread evenly from its first to its last."""
    first, last = recording.arrival_s + recording.ttft_s, recording.arrival_s + recording.latency_s
    done = np.zeros(len(edges))
    for start, stop, tokens in zip(first, last, recording.output_tokens, strict=True):
        done += tokens * np.clip((edges - start) / max(stop - start, 1e-9), 0, 1)
    return np.asarray(np.diff(done) / np.diff(edges))


def _in_system(recording: Recording, times: Float64) -> Float64:
    arrived = np.searchsorted(np.sort(recording.arrival_s), times, side="right")
    left = np.searchsorted(np.sort(recording.arrival_s + recording.latency_s), times, side="right")
    return np.asarray(arrived - left, dtype=np.float64)
