"""Which steps with prompts take longer than simulated, from the stamps of single requests.

usage: python evaluation/prompt_steps.py LOG <options of llmsim run>

An engine with two batches in flight schedules a prompt when the step before the last one ends. Two
steps lie between this stamp and the first token: one of decodes alone, and the one of the prompt.
Only prompts count that ran whole in one step, with no other prompt in either step, in the log as in
the simulation. Their differences are those of the steps, since nobody waits in between.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.preparation.prepare import trial
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError, LlmsimError
from llmsim.core import PS_PER_S
from llmsim.validation import read_recording
from llmsim.validation.logs.fields import number_at
from llmsim.validation.logs.files import text_of
from llmsim.validation.logs.recording import Float64, Int64

SAME_S = 1e-4
"""Stamps of one call of the scheduler, or of one step, lie no farther apart."""
TILE_ROWS = 128
"""Rows of the tiles in which matrices of many rows are computed."""
FEW_DECODES = 64
QUEUED_S = 1.0
"""Requests that waited longer for the scheduler queued for one of the engine's sequences."""


@dataclass(frozen=True, eq=False)
class Stamps:
    """Of each request, in seconds of one clock, by arrival; columns of equal length."""

    arrival: Float64
    scheduled: Float64
    first_token: Float64
    last_token: Float64
    input_tokens: Int64

    def alone(self) -> dict[tuple[int, ...], tuple[float, int]]:
        """Prompts that ran whole in one step: seconds from their scheduling to their first token,
        and the decodes beside them.
        """
        together: dict[float, list[int]] = defaultdict(list)
        for row, stamp in enumerate(self.first_token.tolist()):
            together[round(stamp / SAME_S)].append(row)
        found = {tuple(rows): self._step(rows) for rows in together.values()}
        return {rows: step for rows, step in found.items() if step is not None}

    def _step(self, rows: list[int]) -> tuple[float, int] | None:
        begin, end = self.scheduled[rows].min(), self.first_token[rows].max()
        others = np.ones(len(self.arrival), np.bool_)
        others[rows] = False
        before = self.scheduled < begin + SAME_S
        beside = others & before & (self.first_token > begin + SAME_S)
        decodes = others & (self.first_token < end) & (self.last_token > end - SAME_S)
        if not before[rows].all() or beside.any() or not decodes.any():
            return None
        return float(end - begin), int(decodes.sum())


@dataclass(frozen=True)
class PromptStep:
    """A step of decodes alone and the step behind it, which computes prompts, too."""

    rows: int
    """Tokens of the second step, those of its decodes with them."""
    decodes: int
    recorded_ms: float
    simulated_ms: float

    @property
    def missing_ms(self) -> float:
        """Recorded minus simulated."""
        return self.recorded_ms - self.simulated_ms


@dataclass(frozen=True, eq=False)
class FirstTokens:
    """Stamps of a log and of its simulation, row by row the same requests."""

    real: Stamps
    simulated: Stamps
    cached_tokens: Int64

    def steps(self) -> list[PromptStep]:
        """The steps that the log and the simulation have in common, by their rows."""
        real, simulated = self.real.alone(), self.simulated.alone()
        found = []
        for requests in real.keys() & simulated.keys():
            (seconds, decodes), (ours, our_decodes) = real[requests], simulated[requests]
            if abs(decodes - our_decodes) > 1:
                continue
            new = (self.real.input_tokens - self.cached_tokens)[list(requests)].sum()
            found.append(PromptStep(int(new) + decodes, decodes, 1e3 * seconds, 1e3 * ours))
        return sorted(found, key=lambda step: (step.rows, step.recorded_ms))


def first_tokens(log: Path, options: RunOptions) -> FirstTokens:
    """Reads the log of an engine with `scheduled_ts`, and simulates it."""
    results = trial(options)
    requests = results.requests
    simulated = _by_arrival(
        *(
            column / PS_PER_S
            for column in (
                requests.arrival_ps,
                requests.scheduled_ps,
                requests.first_token_ps,
                requests.finish_ps,
            )
        ),
        results.workload.input_tokens,
    )
    real = read_stamps(log)
    if real.input_tokens.tolist() != simulated.input_tokens.tolist():
        raise InputError(
            f"{log}: its prompts are not those of the simulated trace; give the trace that the "
            "engine served",
            file=str(log),
        )
    order = np.argsort(requests.arrival_ps, kind="stable")
    return FirstTokens(real, simulated, np.asarray(requests.cached_tokens[order], np.int64))


def read_stamps(log: Path) -> Stamps:
    """Stamps of an engine's log; arrivals are those of every comparison with it."""
    real = read_recording(log)
    lines = text_of(log, "it may be an engine's log").splitlines()
    if len(lines) != len(real):
        raise InputError(f"{log}: a request has no first or no last token", file=str(log))
    running = np.array(
        [
            number_at(log, line, row, "first_token_ts") - number_at(log, line, row, "scheduled_ts")
            for line, row in enumerate(map(json.loads, lines), 1)
        ]
    )
    first = real.arrival_s + real.ttft_s
    last = real.arrival_s + real.latency_s
    return _by_arrival(real.arrival_s, first - running, first, last, real.input_tokens)


def _by_arrival(
    arrival: Float64, scheduled: Float64, first: Float64, last: Float64, tokens: Int64
) -> Stamps:
    order = np.argsort(arrival, kind="stable")
    columns = (column[order] for column in (arrival, scheduled, first, last))
    return Stamps(*columns, np.asarray(tokens[order], np.int64))


def parts_markdown(found: FirstTokens) -> str:
    """Where first tokens lie too early: in the queue, or behind it."""
    waits, ours = (one.scheduled - one.arrival for one in (found.real, found.simulated))
    runs, our_runs = (one.first_token - one.scheduled for one in (found.real, found.simulated))
    queued = waits > QUEUED_S
    lines = [
        "| requests | | recorded, ms | simulated, ms | missing, ms |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, chosen in (("not queued", ~queued), ("queued", queued)):
        for part, real, simulated in (
            ("to scheduling", waits, ours),
            ("behind it", runs, our_runs),
        ):
            if chosen.any():
                ms, our_ms = 1e3 * real[chosen].mean(), 1e3 * simulated[chosen].mean()
                lines.append(
                    f"| {int(chosen.sum())} {name} | {part} | {ms:.1f} | {our_ms:.1f} | "
                    f"{ms - our_ms:+.1f} |"
                )
    return "\n".join(lines) + "\n"


def steps_markdown(steps: Sequence[PromptStep]) -> str:
    """A line for each number of tiles, and what all steps miss together."""
    lines = [
        "| rows of the step | steps | recorded, ms | simulated, ms | missing, ms | "
        f"with up to {FEW_DECODES} decodes, ms | with more, ms |",
        "| --- |" + " ---: |" * 6,
    ]
    tiles: dict[int, list[PromptStep]] = defaultdict(list)
    for step in steps:
        tiles[-(-step.rows // TILE_ROWS)].append(step)
    for count, own in sorted(tiles.items()):
        few, more = split(own, lambda step: step.decodes <= FEW_DECODES)
        cells = (
            f"{(count - 1) * TILE_ROWS + 1} to {count * TILE_ROWS}",
            str(len(own)),
            f"{_mean(own, lambda step: step.recorded_ms):.1f}",
            f"{_mean(own, lambda step: step.simulated_ms):.1f}",
            *(_missing(part) for part in (own, few, more)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_sums(steps)]) + "\n"


def split(
    steps: Sequence[PromptStep], chosen: Callable[[PromptStep], bool]
) -> tuple[list[PromptStep], list[PromptStep]]:
    """Those that are chosen, and the others."""
    return [step for step in steps if chosen(step)], [step for step in steps if not chosen(step)]


def _mean(steps: Sequence[PromptStep], value: Callable[[PromptStep], float]) -> float:
    return sum(map(value, steps)) / len(steps)


def _missing(steps: Sequence[PromptStep]) -> str:
    return f"{_mean(steps, lambda step: step.missing_ms):+.1f}" if steps else "-"


def _sums(steps: Sequence[PromptStep]) -> Iterator[str]:
    if not steps:
        yield "- no step with a prompt is the same in the log and in the simulation."
        return
    missing, recorded = (
        sum(step.missing_ms for step in steps),
        sum(step.recorded_ms for step in steps),
    )
    yield (
        f"- {len(steps)} steps with their steps of decodes before them: {missing / len(steps):.1f} "
        f"ms of {recorded / len(steps):.1f} are missing ({100 * missing / recorded:.1f} %)."
    )


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("log", type=Path)
    arguments, run_arguments = parser.parse_known_args()
    try:
        options = replace(checked_options(run_arguments), output=None, run_dir=None)
        found = first_tokens(arguments.log, options)
    except LlmsimError as error:
        print(f"prompt_steps: error: {error}", file=sys.stderr)
        return error.exit_code
    print(parts_markdown(found), steps_markdown(found.steps()), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
