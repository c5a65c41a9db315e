"""How the figures look: one palette, thin axes, text that stays readable at the width
of a column.
"""

import math
from pathlib import Path
from typing import Any

INK, MUTED, GRID = "#1a1a1a", "#6b6b6b", "#dddddd"
REAL, OURS, PEER = "#1a1a1a", "#0072b2", "#d55e00"
"""Measured, llmsim, the other simulator: distinct in print and for colour-blind readers (Okabe and
Ito, 2008).
"""
PARTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
"""Up to seven parts of a stack, in a fixed order."""


def part_label(name: str) -> str:
    """A component of the server's energy as a reader writes it."""
    return {"cpu": "CPU", "dram": "DRAM", "nics": "NICs"}.get(name, name)


def subplots(
    rows: int, columns: int, *, width: float = 2.5, height: float = 1.9
) -> tuple[Any, Any]:
    """(figure, axes[row][column]) in inches per panel."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 8,
            "font.family": "DejaVu Sans",
            "axes.titlesize": 8.5,
            "axes.labelsize": 8,
            "axes.edgecolor": MUTED,
            "axes.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "axes.labelcolor": INK,
            "text.color": INK,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.5,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "legend.fontsize": 7.5,
            "lines.linewidth": 1.3,
            "pdf.fonttype": 42,
            "svg.hashsalt": "llmsim",
        }
    )
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False
    )
    return figure, axes


def note(axis: Any, text: str) -> None:
    """A sentence in a panel that has nothing else to show."""
    import textwrap

    axis.set_axis_off()
    axis.text(
        0.5,
        0.5,
        textwrap.fill(text, 36),
        transform=axis.transAxes,
        ha="center",
        va="center",
        color=MUTED,
    )


def save(figure: Any, path: Path) -> None:
    """The PDF (no creation date: same figures, same bytes) and a PNG beside it for a quick look.

    One legend above all panels holds every label once.
    """
    import matplotlib.pyplot as plt

    labels: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.tight_layout()
    if labels:
        figure.legend(
            labels.values(),
            labels,
            loc="lower center",
            ncols=math.ceil(len(labels) / math.ceil(len(labels) / 4)),  # columns of equal height
            bbox_to_anchor=(0.5, 1.0),
            bbox_transform=figure.transFigure,
        )
    figure.savefig(path, metadata={"CreationDate": None}, bbox_inches="tight")
    figure.savefig(path.with_suffix(".png"), dpi=160, bbox_inches="tight")
    plt.close(figure)
