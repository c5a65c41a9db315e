"""One run of a search, in a process that keeps what it compiled for the next one."""

import dataclasses
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.cluster import Cluster
from llmsim.api.preparation.compiled import CompiledClusters
from llmsim.cli import guarded
from llmsim.cli.run.arguments import checked_options
from llmsim.cli.run.inputs_report import how_it_ended
from llmsim.config.errors import LlmsimError
from llmsim.config.files import input_files
from llmsim.config.files.code_identity import code_hash
from llmsim.config.files.kept import KeptWithFiles
from llmsim.search.figures import figure, shortfall
from llmsim.search.point import LEAST_STEP, STOPPED, Asked, AskedCapacity, Ended
from llmsim.search.rates import words_at
from llmsim.search.successive_halving.ceilings import RunStopped, Watch

if TYPE_CHECKING:
    from llmsim.api.preparation.prepare import Compiled
    from llmsim.core import Workload
    from llmsim.sizing.measure import Bench

DATASET, REQUESTS = "--dataset", "--num-reqs"
COSTLY = ("utilisation", "sources")
"""Blocks of the summary that take as long as a short run on many groups."""
BLOCK = "."
"""In a figure of a block of the summary; only figures in blocks say what steps waited for."""
_COMPILED = CompiledClusters(share_groups=True)
_OPTIONS: KeptWithFiles[RunOptions] = KeptWithFiles(256)
_WORKLOADS: KeptWithFiles["Workload"] = KeptWithFiles(8)


class _Run:
    """One run and how it ended."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.how = ""
        self.summary: dict[str, Any] | None = None

    def __call__(self) -> int:
        """Runs; returns the exit code, or raises what the parts raise."""
        return self._noted(self._simulated)

    def look(self) -> int:
        """Compiles the cluster alone; the summary has the least time of its steps."""
        return self._noted(self._looked_at)

    def _noted(self, act: Callable[[RunOptions], int]) -> int:
        options = self._options()
        try:
            code = act(options)
        except RunStopped as stopped:
            self.how, self.summary = STOPPED, {stopped.figure: stopped.ceiling}
            return 0
        except BaseException as error:
            self.how = how_it_ended(error)
            raise
        self.how = "answered"
        return code

    def _options(self) -> RunOptions:
        """The checked options; the dataset and the number of requests differ from run to run."""
        asked = self._asked
        plugins = "--allow-plugins" if asked.allow_plugins else "--no-allow-plugins"
        words = (f"--cluster-config={asked.name}", *asked.words, plugins)
        dataset, requests = _load_of(asked.words)
        plain = bool(dataset) and requests is not None
        if plain:
            varying = (f"{DATASET}=", f"{REQUESTS}=")
            fixed = [word for word in words if not word.startswith(varying)]
            words = (*fixed, f"{DATASET}=any")

        def checked() -> RunOptions:
            try:
                return checked_options(words)
            except LlmsimError as error:
                self.how = how_it_ended(error)
                raise

        options = _OPTIONS.get(words, checked, keep=not asked.allow_plugins)
        return replace(options, dataset=dataset, num_reqs=requests) if plain else options

    def _compiled(self, options: RunOptions) -> "Compiled":
        return _COMPILED.get(Cluster(self._asked.cluster, self._asked.name), options)

    def _looked_at(self, options: RunOptions) -> int:
        from llmsim.lowering.least_step import least_step_ps

        compiled = self._compiled(options)
        self.summary = {LEAST_STEP: least_step_ps(compiled.deployment, compiled.lowered)}
        return 0

    def _simulated(self, options: RunOptions) -> int:
        from llmsim.api.preparation.prepare import with_workload
        from llmsim.api.report import short_summary_of, summary_of
        from llmsim.api.verdicts.verdict import verdict
        from llmsim.simulation.run import simulate

        prepared = with_workload(
            self._compiled(options),
            options,
            _KeptDataset(options.dataset),
            record_series=False,
            record_steps=False,
        )
        costly = any(name.startswith(COSTLY) for name in self._asked.figures)
        full = costly or bool(options.require)
        causes = full or any(BLOCK in name for name in self._asked.figures)
        simulation = replace(prepared.simulation, record_sources=full, record_row_waits=causes)
        load = prepared.workload
        asked_tokens = None if load.may_give_up else load.output_tokens
        watch = Watch(self._asked.ceilings, len(load), asked_tokens)
        results = simulate(prepared.lowered, prepared.workload, simulation, watch)
        if options.require:
            from llmsim.api.verdicts.provenance_gate import require

            require(options.require, prepared.lowered, results)
        written = summary_of if full else short_summary_of
        summary = written(results, prepared.lowered, prepared.objectives)
        code = verdict(results, summary["invariants"])
        self.summary = summary
        return code


def _load_of(words: Sequence[str]) -> tuple[str, int | None]:
    """The dataset that words name, and how many of its requests: 0 is all, None no number."""
    split = [word.partition("=") for word in words]
    first = {name: value for name, _, value in reversed(split)}
    requests = first.get(REQUESTS, "0")
    is_number = requests.isdecimal() and len(requests) < 10
    return first.get(DATASET, ""), int(requests) if is_number else None


class _KeptDataset:
    """A dataset text whose requests are read once while its files last."""

    def __init__(self, text: str) -> None:
        self._text = text

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The first `limit` requests (0: all)."""
        from llmsim.api.workload import DatasetText

        return _WORKLOADS.get(
            (self._text, tuple(models), granularity, limit),
            lambda: DatasetText(self._text).load(models, granularity, limit),
        )


def ended(_: "Bench", asked: Asked) -> Ended:
    """Runs what was asked for; errors are part of the answer, as they are of a process."""
    run = _Run(asked)
    return _as_answer(run, run)


def least_step(_: "Bench", asked: Asked) -> Ended:
    """Compiles what was asked for; the summary has the least time between two tokens, ps."""
    run = _Run(asked)
    return _as_answer(run, run.look)


def _as_answer(run: _Run, act: Callable[[], int]) -> Ended:
    said = io.StringIO()
    with input_files.recorded() as files, redirect_stderr(said):
        code = guarded(act)
    lines = said.getvalue().strip().splitlines() or [f"the run ended with code {code}"]
    return Ended(
        code,
        run.summary if code == 0 else None,
        lines[-1].removeprefix("llmsim: error: "),
        run.how,
        code_hash(),
        tuple(files.listed()),
    )


def capacity(bench: "Bench", asked: AskedCapacity) -> Ended:
    """Bisects the rate; the draws of all rates are equal, so nothing but the rate differs.

    The highest rate counts as the capacity where it is within the bounds.
    """

    def at(rate: float) -> Ended:
        words = words_at(asked.asked.words, rate)
        return ended(bench, dataclasses.replace(asked.asked, words=words))

    def missed(found: Ended) -> str:
        if found.summary is None:
            return found.said
        names = tuple(asked.bounds)
        values = {name: figure(found.summary, {}, name, asked.where) for name in names}
        absent = [name for name, value in values.items() if value is None]
        if absent:
            return f"the run has no {absent[0]}"
        return shortfall(asked.bounds, {name: value or 0.0 for name, value in values.items()})

    low, high = asked.low, asked.high
    best = at(low)
    if best.summary is None:
        return best
    if why := missed(best):
        return dataclasses.replace(best, capacity_rps=0.0, said=f"at {low:g} requests/s {why}")
    top = at(high)
    if not missed(top):
        return dataclasses.replace(top, capacity_rps=high)
    while high / low > 1 + asked.precision:
        middle = (low * high) ** 0.5
        found = at(middle)
        if missed(found):
            high = middle
        else:
            low, best = middle, found
    return dataclasses.replace(best, capacity_rps=low)
