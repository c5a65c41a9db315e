"""A study as a table in text and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.config.errors import InputError
from llmsim.study.hetero import Row, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    "allocation",
    "USD/h",
    "SR",
    "CE",
    "classes",
    "p95 TTFT ms",
    "p95 TPOT ms",
    "verdict",
)


def text(study: Study) -> str:
    """A Markdown table, the baseline first."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(_cells(row)) for row in study.rows]
    return "".join(f"| {line} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    verdict = row.why if row.gate_failed is None else f"rejected at {row.gate_failed}: {row.why}"
    return [
        row.label,
        f"{row.usd_per_hour:.2f}",
        f"{row.spend_ratio:.3f}",
        "-" if row.cost_efficiency is None else f"{row.cost_efficiency:.3f}",
        ", ".join(f"{role} {bound}" for role, bound in row.classes.items()) or "-",
        _ms(row.outcome.p95_ttft_ms),
        _ms(row.outcome.p95_tpot_ms),
        verdict,
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def plot(study: Study, path: Path) -> None:
    """Writes CE over SR as a picture, accepted allocations filled; raises InputError without
    matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            '--plot needs matplotlib: pip install "llmsim[plot]"', field="--plot"
        ) from None
    from llmsim.export.files import atomic_writer, check_writable

    check_writable(path)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    _scatter(study, figure.subplots())
    with atomic_writer(path, "wb") as stream:
        try:
            figure.savefig(stream, format=path.suffix.lstrip(".").lower() or "png", dpi=150)
        except ValueError as error:
            raise InputError(f"--plot {path}: {error}", field="--plot") from None


def _scatter(study: Study, axes: "Axes") -> None:
    """Numbered points, whose names stand in the legend: allocations may lie close together."""
    rows = [row for row in study.rows if row.cost_efficiency is not None]
    for number, row in enumerate(rows, 1):
        failed = f" (rejected at {row.gate_failed})" if row.gate_failed else ""
        at = row.spend_ratio, row.cost_efficiency or 0.0
        axes.scatter(
            *at,
            facecolors="none" if row.gate_failed else "tab:blue",
            edgecolors="tab:blue",
            label=f"{number}  {row.label}{failed}",
        )
        axes.annotate(str(number), at, (6, 3), textcoords="offset points")
    least = study.question.file.min_ce
    axes.axhline(least, color="grey", linestyle="--", linewidth=1, label=f"least CE, {least:g}")
    axes.margins(0.1)
    axes.set_xlabel("spend ratio SR")
    axes.set_ylabel("cost efficiency CE")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
