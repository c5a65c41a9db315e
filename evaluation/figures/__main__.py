"""Regenerates figures: python -m figures 5 [6 ...] [--artifact DIR] [--output DIR]; compare prints
what they found.
"""

import argparse
import importlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from figures.report import FigureReport, table
from figures.runs import Workspace
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.counted import Counted

EVALUATION = Path(__file__).resolve().parents[1]
FIGURES = (5, 6, 7, 8, 9, 10)


def main() -> int:
    """Exit code 0 when every figure was made, 1 when one failed."""
    options = _options()
    if options.compare:
        return _print_comparisons(options.output, options.figures or list(FIGURES))
    artifact = options.artifact or (
        Path(os.environ["LLMSIM_ARTIFACT"]) if "LLMSIM_ARTIFACT" in os.environ else None
    )
    if artifact is not None and not artifact.is_dir():
        print(
            f"figures: error: --artifact {artifact} is not a folder; name a copy of the artifact",
            file=sys.stderr,
        )
        return 2
    for number in options.figures or FIGURES:
        start = time.perf_counter()
        module = importlib.import_module(f"figures.figure_{number}")
        work = Workspace(
            options.output / f"figure_{number}", artifact.resolve() if artifact else None
        )
        work.folder.mkdir(parents=True, exist_ok=True)
        with Counted() as progress:
            progress.begin(f"figure {number}: runs")
            report: FigureReport = module.build(replace(work, watch=progress))
        report.write(work.folder)
        print("\n".join(table(report)))
        print(
            f"{work.folder}/figure_{number}.pdf in {time.perf_counter() - start:.1f} s\n",
            flush=True,
        )
    return 0


def _options() -> argparse.Namespace:
    parser = OneSentenceParser(prog="figures", description=__doc__)
    parser.add_argument("figures", nargs="*", type=_number, help="5 to 10; all by default")
    parser.add_argument(
        "--artifact", type=Path, help="copy of the published artifact; also LLMSIM_ARTIFACT"
    )
    parser.add_argument(
        "--output", type=Path, default=EVALUATION, help="folder that receives figure_N/"
    )
    parser.add_argument(
        "--compare", action="store_true", help="print the comparisons of figures made before"
    )
    return parser.parse_args()


def _number(text: str) -> int:
    digits = text.removeprefix("figure_")
    if digits not in map(str, FIGURES):
        raise argparse.ArgumentTypeError(
            f'"{text}" is no figure; there are {", ".join(map(str, FIGURES))}'
        )
    return int(digits)


def _print_comparisons(folder: Path, numbers: list[int]) -> int:
    missing = 0
    for number in numbers:
        path = folder / f"figure_{number}" / "parsed" / "comparison.tsv"
        if not path.exists():
            print(f"figure {number}: not made yet; run figure_{number}.sh", file=sys.stderr)
            missing = 1
            continue
        print(f"== figure {number}")
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip()
            )
        print(path.with_name("remarks.txt").read_text())
    return missing


if __name__ == "__main__":
    sys.exit(main())
