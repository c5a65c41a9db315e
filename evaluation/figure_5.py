"""Prints throughput over time on A6000 against the measured series of figure 5 of LLMServingSim 2.0's artifact.

usage: python evaluation/figure_5.py [--data DIR] [--series DIR] [MD SD+PC PDD SM]

DIR holds artifact/figure_5/A6000/{config,reference,peer}, artifact/dataset and artifact/perf_models; by default the
folder shared/data beside the checkout. The profiles are of the older generation and are used unchanged. Errors are in
percent of the measured system; the series count whole seconds, so a total is known to about one part in fifty.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from accuracy_data import SectionSkipped, needed

from llmsim.cli.prepare import checked_options, trial
from llmsim.config.errors import LlmsimError, NotYetError
from llmsim.validation.throughput import SeriesErrors, emitted_series, read_series, series_errors

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
FOLDER = "artifact/figure_5/A6000"
TRACES = {"llama": "sharegpt_req300_rate10_llama.jsonl", "phi": "sharegpt_req300_rate10_phi.jsonl"}


@dataclass(frozen=True)
class Case:
    """One panel of the figure: what it serves, and the trace of its model."""

    title: str
    trace: str


CASES = {
    "MD": Case("two dense instances", "llama"),
    "SD+PC": Case("one dense instance, prefix caching", "llama"),
    "PDD": Case("prefill and decode apart", "llama"),
    "SM": Case("one mixture of experts", "phi"),
}


def arguments_of(data: Path, name: str) -> list[str]:
    """The `llmsim run` command line of a panel: round robin was that version's default, the rest is ours."""
    return [
        "--cluster-config", str(needed(data, f"{FOLDER}/config/{name}_config.json")),
        "--dataset", str(needed(data, f"artifact/dataset/{TRACES[CASES[name].trace]}")),
        "--profile-dir", str(needed(data, "artifact/perf_models")),
        "--request-routing-policy", "RR",
    ]  # fmt: skip


def errors_of(data: Path, name: str, keep: Path | None = None) -> tuple[SeriesErrors, SeriesErrors]:
    """(ours, the peer's) against the measured series of a panel; `keep` receives our series."""
    recorded = read_series(needed(data, f"{FOLDER}/reference/{name}_throughput.tsv"))
    peer = read_series(needed(data, f"{FOLDER}/peer/{name}_throughput.tsv"))
    ours = emitted_series(trial(checked_options(arguments_of(data, name))))
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{second}\t{tokens:g}\n" for second, tokens in enumerate(ours))
        (keep / f"{name}_throughput.tsv").write_text("time_s\tthroughput\n" + rows)
    return series_errors(ours, recorded), series_errors(peer, recorded)


def row(data: Path, name: str, keep: Path | None) -> str:
    """One line of the table, or why there is none."""
    try:
        ours, peer = errors_of(data, name, keep)
    except (NotYetError, SectionSkipped) as reason:
        return f"| {name} | {CASES[name].title} | not run: {reason} | | | |"
    numbers = f"{ours.total:+.1f} | {peer.total:+.1f} | {ours.series:.1f} | {peer.series:.1f}"
    return f"| {name} | {CASES[name].title} | {numbers} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="*", metavar="PANEL", help=f"any of {' '.join(CASES)}; all by default")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--series", type=Path, help="folder that receives our series")
    options = parser.parse_args()
    unknown = [name for name in options.panels if name not in CASES]
    if unknown:
        parser.error(f'unknown panel "{unknown[0]}"; known: {", ".join(CASES)}')
    print("| panel | what | total, ours | total, peer | series, ours | series, peer |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    try:
        for name in options.panels or CASES:
            print(row(options.data, name, options.series), flush=True)
    except LlmsimError as error:
        print(f"figure_5: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
