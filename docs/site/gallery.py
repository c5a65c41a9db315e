"""Draws the pictures of the documentation from bundled examples: `python -m docs.site.gallery`.

Each function below draws one file of docs/pictures. A test draws them again and compares.
"""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llmsim

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
INK = "#7d7c78"
"""Readable on white and on black, since the ground of the pictures is transparent."""
PALETTE = ("#2a78d6", "#1baf7a", "#eda100", "#8a6fe0", "#e34948")
H100 = "cluster_config/h100_llama31_8b.json"
POOL = "cluster_config/h100_cpu_prefix_pool.json"
HASHED_ID = re.compile(rb'(?<=id=")[a-z][0-9a-f]{10}(?=")')
"""What matplotlib calls clip paths and markers: hashes of floats, the last bits of which depend on
the processor.
"""
LOAD = "synthetic:n=600,rate={rate},input=lognormal:1000,output=lognormal:200,seed=1"


def latency_cdf(figure: Any) -> None:
    """TTFT of one H100 at three rates."""
    ax = figure.add_subplot()
    for color, rate in zip(PALETTE, (10, 30, 40), strict=False):
        _cdf(ax, _at(rate).requests["ttft_ps"], f"{rate} requests/s", color)
    ax.set_xlim(0, 1200)


def load(figure: Any) -> None:
    """Running and waiting requests of one H100 that gets more than it serves."""
    result = _at(40)
    left, right = figure.subplots(1, 2)
    result.plot.load(ax=left)
    result.plot.kv_cache(ax=right)


def timeline(figure: Any) -> None:
    """Queue, prefill and decode of the first 40 requests at 40 requests/s."""
    _at(40).plot.timeline(ax=figure.add_subplot(), most=40)


def knee(figure: Any) -> None:
    """Latency against load: where one H100 saturates."""
    rates = (5, 10, 15, 20, 25, 30, 35, 40)
    summaries = [_at(rate).summary for rate in rates]
    left, right = figure.subplots(1, 2)
    for ax, metric, title in ((left, "ttft", "TTFT"), (right, "tpot", "TPOT")):
        for color, statistic in zip(PALETTE, ("median", "p99"), strict=False):
            values = [summary[f"{statistic}_{metric}_ms"] for summary in summaries]
            ax.plot(rates, values, marker="o", markersize=3, color=color, label=statistic)
        ax.set_xlabel("requests/s")
        ax.set_ylabel(f"{title} (ms)")
        ax.set_ylim(0)
        ax.legend(frameon=False)


def disaggregation(figure: Any) -> None:
    """Two H100 with vLLM 0.33 that prefill and decode, beside one for each."""
    import pandas as pd

    left, right = figure.subplots(1, 2)
    both = {
        "2 instances": {"instances": 2},
        "1 prefill + 1 decode": {"prefill": 1, "decode": 1},
    }
    for color, (name, counts) in zip(PALETTE, both.items(), strict=False):
        cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", **counts)
        result = llmsim.run(cluster, LOAD.format(rate=20), engine_profile="vllm-0.33")
        _cdf(left, result.requests["ttft_ps"], name, color)
        gaps = pd.Series([max(gaps, default=0) for gaps in result.requests["itl_ps"]])
        _cdf(right, gaps, name, color)
    right.set_xlabel("longest gap between tokens (ms)")


def offloading(figure: Any) -> None:
    """Host memory that keeps the KV of prefixes which the device evicts."""
    load = "synthetic:n=300,rate=20,input=lognormal:200,output=lognormal:100,seed=1"
    load += ",prefixes=40:tokens=2048"
    options = {"num_gpu_blocks_override": 3000, "max_model_len": 8192}
    tier = {"prefix_storage": "CPU", "enable_prefix_sharing": True}
    ax = figure.add_subplot()
    both: dict[str, Any] = {"device only": {}, "with host memory": tier}
    for color, (name, more) in zip(PALETTE, both.items(), strict=False):
        result = llmsim.run(
            ROOT / "cluster_config/h100_cpu_prefix_pool.json", load, **options, **more
        )
        _cdf(ax, result.requests["ttft_ps"], name, color)


def speculation(figure: Any) -> None:
    """TPOT with and without drafts: verification costs more where many sequences share a step."""
    ax = figure.add_subplot()
    rates = (2, 10, 20, 30, 40)
    drafts = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.8, 0.7, 0.6]}
    for color, (name, more) in zip(
        PALETTE,
        {"without": {}, "EAGLE, 3 drafts": {"speculative_config": drafts}}.items(),
        strict=False,
    ):
        values = [
            llmsim.run(ROOT / H100, LOAD.format(rate=rate), **more).summary["mean_tpot_ms"]
            for rate in rates
        ]
        ax.plot(rates, values, marker="o", markersize=3, color=color, label=name)
    ax.set_xlabel("requests/s")
    ax.set_ylabel("mean TPOT (ms)")
    ax.set_ylim(0)
    ax.legend(frameon=False)


def devices(figure: Any) -> None:
    """Price of a million output tokens against TPOT, for four devices."""
    ax = figure.add_subplot()
    for color, device in zip(PALETTE, ("L40S", "A100", "H100", "H200"), strict=False):
        cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", device)
        points = llmsim.sweep(cluster, _closed(1), {"max_num_seqs": [4, 16, 64, 256]})
        ax.plot(
            points["mean_tpot_ms"],
            points["cost.per_million_output_tokens"],
            marker="o",
            markersize=3,
            color=color,
            label=device,
        )
    ax.set_xlabel("mean TPOT (ms)")
    ax.set_ylabel("USD per million output tokens")
    ax.set_yscale("log")
    ax.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    ax.minorticks_off()
    ax.legend(frameon=False)


def blame(figure: Any) -> Any:
    """What the slowest 1 % wait for, before and after their first token, beside all requests."""
    return _at(30).why("ttft").plot()


PICTURES: dict[str, Callable[[Any], Any]] = {
    function.__name__: function
    for function in (
        latency_cdf,
        knee,
        load,
        timeline,
        blame,
        disaggregation,
        offloading,
        speculation,
        devices,
    )
}


def draw(name: str) -> bytes:
    """One picture as SVG; equal results and an equal matplotlib give equal bytes, but for the last
    digits of coordinates on another processor.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    stream = io.BytesIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        figure = PICTURES[name](figure) or figure
        for ax in figure.axes:
            ax.grid(axis="y", color=INK, alpha=0.3, linewidth=0.6)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
            for text in ax.texts:
                text.set_color(INK)
            if ax.get_legend():
                ax.get_legend().set_frame_on(False)  # pages are light or dark
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return _with_counted_ids(stream.getvalue())


def _with_counted_ids(svg: bytes) -> bytes:
    """The picture with numbers in place of hashes."""
    for count, hashed in enumerate(dict.fromkeys(HASHED_ID.findall(svg)), start=1):
        svg = svg.replace(hashed, b"shape%d" % count)
    return svg


def _at(rate: int) -> llmsim.Result:
    return llmsim.run(ROOT / H100, LOAD.format(rate=rate), log_interval=0.2)


def _closed(rate: int) -> str:
    return f"synthetic:n=256,rate={rate * 1000},input=fixed:500,output=fixed:200,seed=1"


def _cdf(ax: Any, times_ps: Any, label: str, color: str) -> None:
    """The distribution of times at 101 shares, which a small file holds."""
    import numpy as np

    shares = np.linspace(0, 1, 101)
    values = np.quantile(times_ps.to_numpy(float), shares) / 1e9
    ax.plot(values, shares, color=color, label=label)
    ax.set_xlabel("TTFT (ms)")
    ax.set_ylabel("share of requests")
    ax.set_ylim(0, 1.02)
    ax.legend(frameon=False)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PICTURES:
        (FOLDER / f"{wanted}.svg").write_bytes(draw(wanted))
        print(FOLDER / f"{wanted}.svg")
