"""`llmsim.run`: a cluster and a workload in, what every request and the cluster saw out."""

import json
from collections.abc import Collection, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from llmsim.api.checked.given import Given
from llmsim.api.checked.run_inputs import Recorded, RunInputs
from llmsim.api.checked.run_options import READ_FROM_TEXT, RunOptions, checked
from llmsim.api.cluster import Cluster, cluster_of
from llmsim.api.options.elsewhere import elsewhere
from llmsim.api.preparation.compiled import CompiledClusters
from llmsim.api.preparation.prepare import Prepared, with_workload
from llmsim.api.python_values import class_name, option_value
from llmsim.api.python_words import in_python_words
from llmsim.api.result import Result
from llmsim.api.verdicts.culprits import culprits_named
from llmsim.api.workload import workload_source
from llmsim.config.engine.options import command_line_options
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.loading import collections_paused

OUTPUTS = {
    "output": "Result.to_csv",
    "run_dir": "Result.save",
    "timeline": "Result.to_timeline",
    "graphs": "Result.graph",
    "as_json": "Result.summary",
    "input_files": "Result.input_files",
    "log_level": "Result.series",
    "verbose": "Result.summary",
    "quiet": "Result.summary",
}
"""Options of the command line that write, and what a result has in their place."""
INPUTS = ("cluster_config", "dataset", "engine_options")


def run(
    cluster: "str | PathLike[str] | Mapping[str, Any] | Cluster",
    workload: Any,
    *,
    steps: bool = True,
    series: bool = True,
    **options: Any,
) -> Result:
    """Simulates a cluster that serves a workload.

    `cluster` is the path of a cluster file, a mapping with its keys, or a `Cluster`. `workload` is
    a trace file, a dataset text such as `synthetic:n=100,rate=10`, a DataFrame, or a list of
    `Request` objects (`llmsim.api.workload.workload_source`). `options` are those of `llmsim run`
    with underscores: `max_num_seqs=64`, `seed=1`, `cost_source="roofline"`,
    `request_routing_policy="LOR"`. `steps` and `series` say whether the run records them.

    The result covers what was served; a UserWarning names requests that can never run. Equal
    clusters and options are compiled once per process. Raises InputError with `file`, `field` and
    `value`, InfeasibleError where a model does not fit its devices, InvariantError for a defect of
    the simulator, and KeyboardInterrupt.
    """
    from llmsim.api.verdicts.verdict import check_backend

    inputs = RunInputs(cluster_of(cluster), _repeatable(workload), dict(options))
    with (
        culprits_named(inputs.cluster),
        in_python_words(options),
        input_files.recorded() as files,
    ):
        with collections_paused():
            from llmsim.simulation.run import simulate

            settings = settings_of(inputs)
            prepared = prepared_run(inputs, settings, Recorded(steps=steps, series=series))
        results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
        if results.interrupted:
            raise KeyboardInterrupt
        check_backend(results)
        if settings.require:
            from llmsim.api.verdicts.provenance_gate import require

            require(settings.require, prepared.lowered, results)
    return Result(prepared.as_run(results), settings, results, inputs, files)


def settings_of(inputs: RunInputs) -> RunOptions:
    """The checked options of a run; raises InputError."""
    return checked(_given(inputs.cluster, inputs.options))


def prepared_run(inputs: RunInputs, settings: RunOptions, recorded: Recorded) -> Prepared:
    """The compiled cluster with the workload; raises InputError and InfeasibleError."""
    return with_workload(
        _COMPILED.get(inputs.cluster, settings),
        settings,
        workload_source(inputs.workload),
        record_series=recorded.series,
        record_steps=recorded.steps,
    )


def _repeatable(workload: Any) -> Any:
    """The workload as something that can be read again, for `Result.why` and other processes."""
    return list(workload) if isinstance(workload, Iterator) else workload


def _given(cluster: Cluster, options: Mapping[str, Any]) -> Given:
    """The options as the command line would give them."""
    engine, known = command_line_options(), _options_of_a_run()
    _check_names(options, option_names())
    of_run: dict[str, Any] = {}
    of_engine: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in known:
            of_run[name] = option_value(name, _plain(value))
        if name in engine:
            of_engine[name] = _engine_value(name, _plain(value))
    return Given(
        cluster_config=Path(cluster.name), dataset="workload", engine_options=of_engine, **of_run
    )


def option_names() -> list[str]:
    """The names of all options that `run` takes beside its arguments."""
    return [*_options_of_a_run(), *command_line_options()]


def _options_of_a_run() -> list[str]:
    """The options beside those of the engine, which all have a default."""
    of_files = {*INPUTS, *OUTPUTS}
    known = [name for name in Given.__struct_fields__ if name not in of_files]
    assert set(known) <= set(Given.defaults()), known
    return known


def _engine_value(name: str, value: Any) -> Any:
    """An engine option's value, as text where the command line reads it from text."""
    named = class_name(value)
    return _text(named) if name in READ_FROM_TEXT else named


def _check_names(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InputError for an option that a run from Python does not have."""
    for name, value in options.items():
        if name in OUTPUTS:
            raise InputError(
                f"{name} is an option of the command line; use {OUTPUTS[name]}",
                field=name,
                value=value,
            )
        if name not in known:
            listed = (
                f"{nearest(name, known)}; `llmsim run --help` lists them, with underscores here"
            )
            raise InputError(
                f"{name} is no option of a run"
                f"{elsewhere(name, str, {*known, 'cluster_config'}) or listed}",
                field=name,
                value=value,
            )


def _plain(value: Any) -> Any:
    """The Python value of a numpy scalar; other values as they are."""
    return value.item() if getattr(value, "shape", None) == () else value


def _text(value: Any) -> str:
    """Lists and mappings as the command line writes them."""
    if isinstance(value, Mapping):
        return json.dumps(dict(value), default=str)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_COMPILED = CompiledClusters()
