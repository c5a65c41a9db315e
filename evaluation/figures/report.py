"""What a figure hands to its reader besides the plot: comparisons with reference numbers, and what
could not be run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """One number beside its reference; `peer` is the published error of LLMServingSim 2.0 in
    percent, where known.
    """

    what: str
    ours: float
    reference: float
    source: str
    peer: float | None = None

    @property
    def error_percent(self) -> float:
        """Relative to the reference; absolute percentage points where the quantity itself is an
        error (reference 0).
        """
        return 100.0 * (self.ours / self.reference - 1.0) if self.reference else self.ours


@dataclass
class FigureReport:
    """Filled by a figure's module, printed by `compare`."""

    number: int
    title: str
    comparisons: list[Comparison] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """parsed/comparison.tsv and parsed/remarks.txt."""
        parsed = folder / "parsed"
        parsed.mkdir(parents=True, exist_ok=True)
        rows = ["what\tours\treference\terror_percent\tpeer_error_percent\tsource"]
        for one in self.comparisons:
            peer = "" if one.peer is None else f"{one.peer:.2f}"
            rows.append(
                f"{one.what}\t{one.ours:.6g}\t{one.reference:.6g}\t{one.error_percent:.2f}\t{peer}\t{one.source}"
            )
        (parsed / "comparison.tsv").write_text("\n".join(rows) + "\n")
        (parsed / "remarks.txt").write_text("".join(f"{remark}\n" for remark in self.remarks))


def table(report: FigureReport) -> Iterable[str]:
    """The report as Markdown lines."""
    yield f"## Figure {report.number}: {report.title}"
    yield ""
    if report.comparisons:
        yield "| what | ours | reference | error, % | LLMServingSim 2.0's error, % | source |"
        yield "| --- | ---: | ---: | ---: | ---: | --- |"
        for one in report.comparisons:
            peer = "" if one.peer is None else f"{one.peer:+.1f}"
            reference = f"{one.reference:.5g}" if one.reference else ""
            error = f"{one.error_percent:+.1f}" if one.reference else ""
            yield f"| {one.what} | {one.ours:.5g} | {reference} | {error} | {peer} | {one.source} |"
        yield ""
    for remark in report.remarks:
        yield f"- {remark}"
    yield ""
