"""The answer of a run: tables, summary, pictures and files."""

import sys
import warnings
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.api.checked.run_inputs import Recorded, RunInputs
from llmsim.api.checked.run_options import RunOptions
from llmsim.api.preparation.prepare import Prepared
from llmsim.api.python_values import check_kinds
from llmsim.api.report import asked_record, summary_of, write_run_folder
from llmsim.api.verdicts.verdict import verdict
from llmsim.columns import PowerColumns, SeriesColumns, StepColumns
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.core import PS_PER_S, Results
from llmsim.results.requests.sessions import reasons

if TYPE_CHECKING:
    import networkx
    import pandas as pd

    from llmsim.api.pictures.plots import Plots
    from llmsim.api.why.answer import Why
    from llmsim.config.files.input_files import InputFile, InputFiles


class Result:
    """What every request and the cluster saw in one run.

    Tables are pandas DataFrames over arrow columns; times are integer picoseconds (`_ps`), missing
    where something never happened. `docs/reference/metrics.md` explains every column and figure.
    """

    def __init__(
        self,
        prepared: Prepared,
        options: RunOptions,
        results: Results,
        inputs: RunInputs,
        files: "InputFiles",
    ) -> None:
        """Raises InvariantError where the results cannot be trusted; warns of requests that can
        never run.
        """
        self._prepared, self._options, self._results = prepared, options, results
        self._files = files
        self._recorded = Recorded(
            steps=prepared.simulation.record_steps, series=prepared.simulation.record_series
        )
        self.inputs = inputs
        """What the run was given: cluster, workload and options."""
        self.cluster = inputs.cluster
        self.summary: dict[str, Any] = summary_of(results, prepared.lowered, prepared.objectives)
        """What `llmsim run --json` prints: vLLM's benchmark names first, then the rest."""
        try:
            verdict(results, self.summary["invariants"])
        except InfeasibleError as error:
            warnings.warn(str(error), UserWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        """What the run was given and what came of it; the rest is made again when it is needed."""
        kept = ("inputs", "cluster", "summary", "_results", "_recorded")
        return {name: getattr(self, name) for name in kept} | {"_files": self._files.copied()}

    @cached_property
    def _options(self) -> RunOptions:
        """The checked options; checked again in a process that was given the result."""
        from llmsim.api.run import settings_of

        return settings_of(self.inputs)

    @cached_property
    def _prepared(self) -> Prepared:
        """What was simulated; compiled again in a process that was given the result.

        Raises InputError where a file of the run is not what it was.
        """
        from llmsim.api.run import prepared_run

        changed = self._files.changed()
        if changed is not None:
            raise InputError(
                f"{changed} has changed since the run, so that this result, which came from "
                "another process, cannot be continued; run it again",
                file=changed,
            )
        return prepared_run(self.inputs, self._options, self._recorded).as_run(self._results)

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row per request of the workload: the columns of `requests.parquet`."""
        from llmsim.export.parquet import request_table

        return _frame(request_table(self._results))

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row per engine step and group: the columns of `steps.parquet`."""
        return _columns_frame(self._results.steps, StepColumns.COLUMNS)

    @cached_property
    def series(self) -> "pd.DataFrame":
        """One row per interval and group (`log_interval`, 1 s): the columns of `series.parquet`."""
        return _columns_frame(self._results.series, SeriesColumns.COLUMNS)

    @cached_property
    def power(self) -> "pd.DataFrame":
        """One row per interval and node with a power section: the columns of `power.parquet`."""
        energy = self._results.energy
        return _columns_frame({} if energy is None else energy.series, PowerColumns.COLUMNS)

    @cached_property
    def sessions(self) -> "pd.DataFrame":
        """One row per session: its calls, tokens, first arrival, last token and duration.

        A session with a call that did not finish has no `finish_ps` and no `duration_ps`. Where the
        workload has hidden rounds, the other columns of `sessions.parquet` follow.
        """
        if reasons(self._results.workload):
            return self._reasoning_sessions()
        named = self.requests[self.requests["session_id"].notna()]
        groups = named.groupby("session_id", sort=False)
        table = groups.agg(
            calls=("request_id", "size"),
            finished=("finish_ps", "count"),
            input_tokens=("input_tokens", "sum"),
            emitted_tokens=("emitted_tokens", "sum"),
            arrival_ps=("arrival_ps", "min"),
            finish_ps=("finish_ps", "max"),
        ).reset_index()
        table["finish_ps"] = table["finish_ps"].where(table["finished"] == table["calls"])
        table["duration_ps"] = table["finish_ps"] - table["arrival_ps"]
        return table

    @cached_property
    def groups(self) -> "pd.DataFrame":
        """One row per group: role, hardware, devices, and the counters of its steps.

        `role` is "prefill", "decode", "attention", "ffn", or "colocated" for a group that does all.
        `computing_ps` is what of `busy_ps` the group's operators take where attention and FFN wait
        for each other, and all of it elsewhere; `dummy_ps` what of that data-parallel ranks take
        for steps without requests.
        """
        import pandas as pd

        counters = self._results.counters
        table = pd.DataFrame(
            {
                "group": [info.index for info in self._results.groups],
                "role": [one.role or "colocated" for one in self._prepared.deployment.groups],
                "model": [info.model_name for info in self._results.groups],
                "hardware": [info.hardware for info in self._results.groups],
                "devices": [info.num_devices for info in self._results.groups],
            }
        )
        for name in ("steps", "busy_ps", "scheduled_tokens", "scheduled_sequences"):
            table[name] = counters[name]
        apart = counters["afd_ps"] > 0
        table["computing_ps"] = counters["busy_ps"].copy()
        table.loc[apart, "computing_ps"] = counters["afd_computing_ps"][apart]
        table["dummy_ps"] = counters["dummy_ps"].copy()
        table.loc[apart, "dummy_ps"] = counters["afd_dummy_ps"][apart]
        return table

    @cached_property
    def operator_limits(self) -> "pd.DataFrame":
        """One row per group and operator: its time, the part that arithmetic limits, and `limit`.

        `limit` is "compute", "memory" or "links", whatever limits most of the operator's time by
        the data sheet. Groups of a device without a data sheet have no rows.
        """
        import pandas as pd

        from llmsim.results.devices.operator_limits import GroupCosts, operator_limits
        from llmsim.results.devices.utilisation import group_usage

        rows = []
        for group in self._prepared.lowered.groups:
            if group.hardware is None:
                continue
            ps = {cost.name: cost.ps for cost in group.costs.ops}
            costs = GroupCosts(group.operators, ps, group.hardware)
            index = group.info.index
            usage = group_usage(self._results, index)
            rows += operator_limits(index, costs, usage, self._results.time_shares)
        names = ("group", "operator", "time_ps", "compute_ps", "limit")
        return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)

    def _reasoning_sessions(self) -> "pd.DataFrame":
        from llmsim.export.parquet import session_table

        table = _frame(session_table(self._results))
        old = {"rounds": "calls", "finished_rounds": "finished", "session_e2el_ps": "duration_ps"}
        first = ["session_id", "calls", "finished", "input_tokens", "emitted_tokens"]
        first += ["arrival_ps", "finish_ps", "duration_ps"]
        table = table.assign(**{new: table[name] for name, new in old.items()})
        return table[[*first, *(name for name in table.columns if name not in first)]]

    @property
    def notes(self) -> list[str]:
        """Sentences about the run: what was assumed, and what changed nothing."""
        return list(self.summary["notes"])

    @property
    def input_files(self) -> "list[InputFile]":
        """Every file that the run read, with its SHA-256."""
        return self._files.listed()

    @property
    def plot(self) -> "Plots":
        """Pictures of the run (needs matplotlib)."""
        from llmsim.api.pictures.plots import Plots

        return Plots(self)

    def why(
        self,
        metric: str = "ttft",
        percentile: float = 99.0,
        *,
        request: str | int | None = None,
        what_if: int | None = None,
    ) -> "Why":
        """What the slowest requests wait for, the causes, and changes that runs have tested.

        `metric` is "ttft", "tpot" or "e2el", `request` adds the story of one request, and `what_if`
        limits the changes that are tested. Needs steps. Raises InputError for an unknown metric,
        percentile or request.
        """
        from llmsim.api.why.answer import why

        return why(self, metric, percentile, request=request, what_if=what_if)

    def graph(self, group: int = 0, step: int = 0) -> "networkx.DiGraph[int]":
        """One step of a group as a networkx graph: operators, copies, transfers of KV, with times.

        `step` counts the group's steps with work, from 0. Nodes have the attributes of
        docs/reference/graphs.md; times are in microseconds. The run is repeated until the step.
        Raises InputError where there is no such group or step.
        """
        from llmsim.export.step_graph.formats import to_networkx
        from llmsim.export.step_graph.graph import iteration_graph
        from llmsim.export.step_graph.run_times import in_run
        from llmsim.rounds import steps_until

        check_kinds({"group": int, "step": int}, {"group": group, "step": step})
        lowered = self._prepared.lowered
        if not 0 <= group < len(lowered.groups):
            raise InputError(
                f"group is {group}; it may be from 0 to {len(lowered.groups) - 1}",
                field="group",
                value=group,
            )
        steps = steps_until(
            lowered, self._prepared.workload, self._prepared.simulation, group, step
        )
        batch = steps.round(step)
        graph = iteration_graph(steps.groups, group, batch)
        return to_networkx(in_run(graph, batch))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes a run folder as `llmsim run --run-dir` does; raises InputError."""
        if not self._recorded.series:
            raise InputError(
                f"{Path(folder)}: this run recorded no series; run it with series=True"
            )
        write_run_folder(
            Path(folder),
            self._options,
            self._prepared.deployment,
            self._prepared.lowered,
            self._results,
            self.summary,
            asked=self._asked(),
            argv=[*sys.argv],
            inputs=[Path(one.path) for one in self.input_files if one.kind == "file"],
            files=self.input_files,
            series=None,
        )

    def _asked(self) -> dict[str, Any]:
        from os import fspath

        workload = self.inputs.workload
        text = str(fspath(workload)) if isinstance(workload, str | PathLike) else None
        return asked_record(self.cluster, text, self._options.asked)

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Writes the requests as `llmsim run --output` does (LLMServingSim's columns)."""
        from llmsim.export.csv import write_csv

        write_csv(self._results, Path(path))

    def to_timeline(self, path: str | PathLike[str]) -> None:
        """Writes a trace for ui.perfetto.dev as `llmsim run --timeline` does (needs perfetto)."""
        from llmsim.export.timeline.gauges import GroupOperators
        from llmsim.export.timeline.timeline import check_perfetto, write_timeline

        check_perfetto()
        groups = [
            GroupOperators(group.operators, group.program_costs)
            for group in self._prepared.lowered.groups
        ]
        how = self._prepared.deployment.disaggregation
        write_timeline(
            Path(path), self._results, groups, layerwise=how is not None and how.layerwise
        )

    def to_vllm_bench(self, path: str | PathLike[str]) -> None:
        """Writes the JSON of `vllm bench serve --save-detailed`; raises InputError."""
        self._export("vllm-bench", path)

    def to_aiperf(self, path: str | PathLike[str]) -> None:
        """Writes aiperf's summary and records into a folder, or one of them as .json or .jsonl."""
        self._export("aiperf", path)

    def to_guidellm(self, path: str | PathLike[str]) -> None:
        """Writes GuideLLM's `benchmarks.json`; raises InputError."""
        self._export("guidellm", path)

    def to_inference_perf(self, path: str | PathLike[str]) -> None:
        """Writes Inference-Perf's summary and requests into a folder, or one of them as .json."""
        self._export("inference-perf", path)

    def to_openmetrics(self, path: str | PathLike[str]) -> None:
        """Writes vLLM's metrics over time as OpenMetrics text; raises InputError."""
        self._export("openmetrics", path)

    def to_chakra(self, folder: str | PathLike[str], group: int = 0, step: int = 0) -> list[Path]:
        """Writes one step of a group as Chakra traces, one file for each rank (needs protobuf).

        Steps count from 0. Raises InputError where the group did not run so many.
        """
        from llmsim.export.files import check_writable_folder
        from llmsim.export.step_graph.chakra import write_chakra
        from llmsim.export.step_graph.graph import iteration_graph
        from llmsim.export.step_graph.run_times import in_run
        from llmsim.rounds import steps_until

        target, prepared = check_writable_folder(Path(folder)), self._prepared
        groups = prepared.lowered.groups
        if not 0 <= group < len(groups):
            raise InputError(
                f"group is {group}; the cluster has the groups 0 to {len(groups) - 1}",
                field="group",
                value=group,
            )
        steps = steps_until(prepared.lowered, prepared.workload, prepared.simulation, group, step)
        batch = steps.round(step)
        graph = in_run(iteration_graph(steps.groups, group, batch), batch)
        return list(write_chakra(graph, list(range(graph.ranks)), target))

    def _export(self, name: str, path: str | PathLike[str]) -> None:
        from llmsim.export.benchmark_formats.formats import export
        from llmsim.export.benchmark_formats.tables import RunTables

        tables = RunTables.of_results(
            self._results, self.summary, self._asked(), self._options.seed
        )
        export(tables, name, Path(path))

    def __repr__(self) -> str:
        return (
            f"<llmsim.Result: {'; '.join(f'{name} {value}' for name, value in self._headline())}>"
        )

    def _repr_html_(self) -> str:
        """A table of the headline for notebooks."""
        from html import escape

        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._headline()
        )
        return f"<table>{cells}</table>"

    def _headline(self) -> list[tuple[str, str]]:
        summary: Mapping[str, Any] = self.summary
        duration = summary["duration"]
        shown = [
            ("requests", f"{summary['completed']} of {len(self._results.workload)}"),
            ("duration", "-" if duration is None else f"{duration:.3f} s"),
            ("output", _shown(summary["output_throughput"], "tok/s")),
        ]
        for label, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2el")):
            mean, p99 = summary[f"mean_{name}_ms"], summary[f"p99_{name}_ms"]
            shown.append((label, f"mean {_shown(mean, 'ms')}, p99 {_shown(p99, 'ms')}"))
        return shown

    @property
    def duration_s(self) -> float:
        """Simulated seconds from the first arrival to the end of the last request."""
        from llmsim.results.requests.metrics import makespan_ps

        return (makespan_ps(self._results) or 0) / PS_PER_S


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.1f} {unit}"


def _frame(table: Any) -> "pd.DataFrame":
    """A DataFrame whose columns are the table's arrow columns."""
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)  # type: ignore[no-any-return]


def _columns_frame(columns: Mapping[str, Any], schema: Any) -> "pd.DataFrame":
    import pyarrow as pa

    from llmsim.export.parquet import record_batch

    return _frame(pa.Table.from_batches([record_batch(columns, schema)]))
