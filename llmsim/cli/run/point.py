"""One run of a search, in a process that keeps what it compiled for the next one."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.cluster import Cluster
from llmsim.api.compiled import CompiledClusters
from llmsim.cli import guarded
from llmsim.cli.run.arguments import checked_options
from llmsim.cli.run.inputs_report import how_it_ended
from llmsim.config import input_files
from llmsim.config.code_identity import code_hash
from llmsim.config.errors import LlmsimError
from llmsim.config.kept import KeptWithFiles
from llmsim.search.point import Asked, Ended

if TYPE_CHECKING:
    from llmsim.core import Workload
    from llmsim.lowering import LoweredDeployment
    from llmsim.sizing.measure import Bench

COSTLY = ("utilisation", "sources")
"""Blocks of the summary that take as long as a short run on many groups."""
_COMPILED = CompiledClusters()
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
        options = self._options()
        try:
            code = self._simulated(options)
        except BaseException as error:
            self.how = how_it_ended(error)
            raise
        self.how = "answered"
        return code

    def _options(self) -> RunOptions:
        asked = self._asked
        plugins = "--allow-plugins" if asked.allow_plugins else "--no-allow-plugins"
        words = (f"--cluster-config={asked.name}", *asked.words, plugins)

        def checked() -> RunOptions:
            try:
                return checked_options(words)
            except LlmsimError as error:
                self.how = how_it_ended(error)
                raise

        return _OPTIONS.get(words, checked, keep=not asked.allow_plugins)

    def _simulated(self, options: RunOptions) -> int:
        from llmsim.api.prepare import with_workload
        from llmsim.api.verdict import verdict
        from llmsim.simulate import simulate

        compiled = _COMPILED.get(Cluster(self._asked.cluster, self._asked.name), options)
        prepared = with_workload(
            compiled,
            options,
            _KeptDataset(options.dataset),
            record_series=False,
            record_steps=False,
        )
        results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
        if options.require:
            from llmsim.api.provenance_gate import require

            require(options.require, prepared.lowered, results)
        summary = self._summary(results, prepared.lowered, options)
        code = verdict(results, summary["invariants"])
        self.summary = summary
        return code

    def _summary(
        self, results: Any, lowered: "LoweredDeployment", options: RunOptions
    ) -> dict[str, Any]:
        from llmsim.api.report import short_summary_of, summary_of

        if any(name.startswith(COSTLY) for name in self._asked.figures):
            return summary_of(results, lowered, options.targets_ps)
        return short_summary_of(results, lowered, options.targets_ps)


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
    run, said = _Run(asked), io.StringIO()
    with input_files.recorded() as files, redirect_stderr(said):
        code = guarded(run)
    lines = said.getvalue().strip().splitlines() or [f"the run ended with code {code}"]
    return Ended(
        code,
        run.summary if code == 0 else None,
        lines[-1].removeprefix("llmsim: error: "),
        run.how,
        code_hash(),
        tuple(files.listed()),
    )
