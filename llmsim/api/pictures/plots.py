"""Pictures of a run, drawn with matplotlib on axes of the caller or on new ones."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, PS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from llmsim.api.result import Result

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency"}
INK = "#52514e"
PALETTE = ("#2a78d6", "#1baf7a", "#eda100", "#4a3aa7", "#e34948")


class Plots:
    """Draws one result; every method returns the axes, so that it can be changed and saved."""

    def __init__(self, result: "Result") -> None:
        self._result = result

    def __call__(self) -> "Figure":
        """Four pictures in one: latencies, load, KV cache and the first requests.

        Needs the series of the run; raises InputError without them, and without matplotlib.
        """
        if not self._result._recorded.series:
            raise InputError("this run recorded no series; run it with series=True")
        figure = new_figure((11, 7))
        (first, second), (third, fourth) = figure.subplots(2, 2)
        self.latency_cdf(ax=first)
        self.load(second)
        self.kv_cache(third)
        self.timeline(fourth)
        return figure

    def latency_cdf(self, metric: str = "ttft", ax: "Axes | None" = None) -> "Axes":
        """The share of finished requests at or below each latency, in milliseconds.

        `metric` is ttft, tpot or e2el; raises InputError for another.
        """
        values = np.sort(self._latencies_ms(metric))
        ax = new_axes(ax, f"{LATENCIES[metric]} (ms)", "share of requests")
        share = np.arange(1, len(values) + 1) / max(len(values), 1)
        ax.step(values, share, where="post", color=PALETTE[0], linewidth=1.6)
        for percent in (50, 99):
            if len(values):
                at = float(np.percentile(values, percent))
                ax.axvline(at, color=INK, linewidth=0.7, linestyle=":")
                low, high = ax.get_xlim()
                is_right = at > low + 0.75 * (high - low)  # a text there would leave the picture
                ax.annotate(
                    f"p{percent} {at:,.0f} ms" if at >= 100 else f"p{percent} {at:.3g} ms",
                    (at, 0.03 if percent == 50 else 0.12),
                    textcoords="offset points",
                    xytext=(-4 if is_right else 4, 0),
                    ha="right" if is_right else "left",
                    color=INK,
                )
        ax.set_ylim(0, 1.02)
        return ax

    def load(self, ax: "Axes | None" = None) -> "Axes":
        """Running and waiting requests of all groups over time."""
        series = self._result.series
        ax = new_axes(ax, "time (s)", "requests")
        totals = series.groupby("time_ps")[["running", "waiting"]].sum()
        seconds = np.asarray(totals.index, dtype=float) / PS_PER_S
        for color, name in zip(PALETTE, ("running", "waiting"), strict=False):
            ax.plot(seconds, totals[name].to_numpy(float), color=color, linewidth=1.6, label=name)
        ax.set_ylim(bottom=0)
        ax.locator_params(axis="y", integer=True, min_n_ticks=1)
        add_legend(ax)
        return ax

    def kv_cache(self, ax: "Axes | None" = None) -> "Axes":
        """The share of each group's KV blocks that requests hold, over time; of more groups than
        colours the mean, and a band from the least to the most.
        """
        series = self._result.series
        blocks = {one["group"]: one["num_blocks"] - 1 for one in self._result.summary["kv_cache"]}
        ax = new_axes(ax, "time (s)", "KV blocks in use (%)")
        held = series.pivot(index="time_ps", columns="group", values="kv_blocks_used")
        seconds = held.index.to_numpy(float) / PS_PER_S
        used = {
            group: 100 * held[group].to_numpy(float, na_value=np.nan) / max(usable, 1)
            for group, usable in sorted(blocks.items())
        }
        if len(used) > len(PALETTE):
            shares = np.array(list(used.values()))
            band = (np.nanmin(shares, axis=0), np.nanmax(shares, axis=0))
            ax.fill_between(seconds, *band, color=PALETTE[0], alpha=0.25, label="least to most")
            used = {f"s, mean of {len(used)}": np.nanmean(shares, axis=0)}
        for color, (group, share) in zip(PALETTE, used.items(), strict=False):
            name = f"group{group}" if isinstance(group, str) else f"group {group}"
            ax.plot(seconds, share, color=color, linewidth=1.4, label=name)
        ax.set_ylim(0, 102)
        add_legend(ax)
        return ax

    def timeline(self, ax: "Axes | None" = None, most: int = 200) -> "Axes":
        """A bar per request: queueing, prefill and decode, the first `most` in order of arrival."""
        count, rows = len(self._result.requests), self._result.requests.head(most)
        which = "request" if count <= most else f"request (the first {most:,} of {count:,})"
        ax = new_axes(ax, "time (s)", which)
        at = {
            name: rows[name].to_numpy(float, na_value=np.nan) / PS_PER_S
            for name in ("arrival_ps", "scheduled_ps", "first_token_ps", "finish_ps")
        }
        number = np.arange(len(rows))
        spans = (
            ("queue", "arrival_ps", "scheduled_ps", PALETTE[2]),
            ("prefill", "scheduled_ps", "first_token_ps", PALETTE[0]),
            ("decode", "first_token_ps", "finish_ps", PALETTE[1]),
        )
        for label, first, last, color in spans:
            width = at[last] - at[first]
            ax.barh(number, width, left=at[first], height=0.9, color=color, label=label)
        ax.invert_yaxis()
        ax.locator_params(axis="y", integer=True, min_n_ticks=1)
        add_legend(ax)
        return ax

    def pareto(
        self,
        others: "Mapping[str, Result] | None" = None,
        name: str = "this run",
        ax: "Axes | None" = None,
    ) -> "Axes":
        """This run among others: tokens per second for a user, and output tokens per second and
        device. Those that no other beats in both are a line with names.

        `others` maps names to results; raises InputError for a result without decoded tokens.
        """
        from llmsim.api.pictures.front import DEVICE, USER, Figure, Point, draw_front

        points = []
        for label, result in {name: self._result, **(others or {})}.items():
            summary = result.summary
            tpot_ms = summary["mean_tpot_ms"]
            if not tpot_ms:
                raise InputError(
                    f'"{label}" has no TPOT, as no request has a second token; leave it out',
                    field="others",
                    value=label,
                )
            devices = sum(one["devices"] for one in summary["utilisation_by_device"])
            points.append(Point(label, 1e3 / tpot_ms, summary["output_throughput"] / devices))
        return draw_front(points, Figure(USER, True), Figure(DEVICE, True), ax)

    def _latencies_ms(self, metric: str) -> Any:
        if metric not in LATENCIES:
            raise InputError(
                f'metric is "{metric}"; give one of {", ".join(LATENCIES)}',
                field="metric",
                value=metric,
            )
        rows = self._result.requests
        rows = rows[rows["finish_ps"].notna()]
        if metric == "tpot":
            several = rows[rows["emitted_tokens"] > 1]
            decode_ps = (several["finish_ps"] - several["first_token_ps"]).to_numpy(float)
            return decode_ps / (several["emitted_tokens"].to_numpy(float) - 1) / PS_PER_MS
        return rows[f"{metric}_ps"].to_numpy(float) / PS_PER_MS


def new_figure(size: tuple[float, float]) -> "Figure":
    """An empty figure; raises InputError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            'plots need matplotlib, which is not installed; pip install "llmsim[plot]"'
        ) from None
    return Figure(figsize=size, layout="constrained")


def add_legend(ax: "Axes") -> None:
    """A legend that stays legible over lines and bars."""
    ax.legend(edgecolor="none", framealpha=0.85)


def new_axes(ax: "Axes | None", x: str, y: str) -> "Axes":
    """The caller's axes or new ones, with names; raises InputError without matplotlib."""
    if ax is None:
        ax = new_figure((7, 4)).add_subplot()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(axis="y", color="#e1e0d9", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax
