"""Prints what each fidelity term is worth on a recorded run: one term removed at a time.

usage: python evaluation/ablation.py LOG [--json] [--term NAME ...] [--skip-seconds S] <options of
llmsim run>

The options describe the recorded deployment, at least --cluster-config and --dataset. The log's own
arrival times are used where it has them. Errors are simulated minus real, percent; MAPE is over
requests, without those that arrived in the first seconds, where the real engine is still cold.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from llmsim.api.preparation.prepare import trial
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import LlmsimError
from llmsim.validation import read_recording
from llmsim.validation.fit.ablation import Row, ablate, ablation_json, ablation_markdown
from llmsim.validation.logs.recording import Recording, recording_of


def run(
    log: Path, run_arguments: Sequence[str], terms: Sequence[str] = (), skip_seconds: float = 2.0
) -> tuple[Row, ...]:
    """The rows of the table."""
    real = read_recording(log)
    options = replace(checked_options(run_arguments), output=None, run_dir=None)
    if options.arrivals is None and real.has_arrivals:
        options = replace(options, arrivals=log)

    def simulate(disabled: tuple[str, ...]) -> Recording:
        return recording_of(trial(replace(options, disabled_terms=disabled)))

    return ablate(real, simulate, terms, skip_seconds)


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--term", action="append", default=[])
    parser.add_argument("--skip-seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    arguments, run_arguments = parser.parse_known_args()
    try:
        rows = run(arguments.log, run_arguments, arguments.term, arguments.skip_seconds)
    except LlmsimError as error:
        print(f"ablation: error: {error}", file=sys.stderr)
        return error.exit_code
    print(
        json.dumps(ablation_json(rows), indent=2) if arguments.json else ablation_markdown(rows),
        end="",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
