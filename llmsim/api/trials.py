"""A deployment that is run again and again with other constants of its machine, or with other
options.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from llmsim.api.cluster import Cluster
from llmsim.config.engine.options import SAME_OPTION
from llmsim.config.errors import InputError, LlmsimError

if TYPE_CHECKING:
    from llmsim.api.checked.run_inputs import RunInputs
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.api.preparation.prepare import Compiled
    from llmsim.core import Workload
    from llmsim.lowering import Calibration, LoweredDeployment
    from llmsim.validation import Comparison, Recording
    from llmsim.validation.fit.doctor import Diagnosis
    from llmsim.validation.logs.recording import Finding

TENSOR_PARALLEL_SIZE, NUM_INSTANCES = "tensor_parallel_size", "num_instances"
WIDTHS = (TENSOR_PARALLEL_SIZE, "tp_size", "attn_tp_size", "ffn_tp_size", "num_npus", "npu_num")
"""Keys of an instance that grow with its tensor parallelism."""
Fields = dict[str, Any]
MOST = 20_000
"""Requests of the largest log that the doctor looks at beside a comparison: one or two minutes."""
LEFT_OUT = (
    "the log doctor was left out, as it would simulate {:,} requests some 200 times; give "
    "llmsim calibrate the log, or compare the first requests of it"
)


class _ReadOnce:
    """A workload that many runs have, which is read once for each form that they need."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload
        self._read: dict[tuple[tuple[str, ...], int, int], Workload] = {}

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The requests (`llmsim.api.workload.WorkloadSource`)."""
        from llmsim.api.workload import workload_source

        form = tuple(models), granularity, limit
        if form not in self._read:
            self._read[form] = workload_source(self._workload).load(*form)
        return self._read[form]


class Trial:
    """Simulates one cluster and workload, and keeps nothing of a run but its requests."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Any,
        settings: "RunOptions",
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self._cluster, self._workload, self._done = cluster, workload, done
        self._source = _ReadOnce(workload)

    def at_arrivals_of(self, log: Path) -> "Trial":
        """The same at the arrival times of a log."""
        settings = replace(self.settings, arrivals=log)
        return Trial(self._cluster, self._workload, settings, self._done)

    def lowered(self) -> "LoweredDeployment":
        """The deployment as it is described."""
        return self._compiled({}, self.settings.calibration).lowered

    def recording(
        self, calibration: "Calibration | None", changed: Mapping[str, Any] | None = None
    ) -> "Recording":
        """One run as a recording; `changed` options go before those of the cluster file."""
        from llmsim.api.preparation.prepare import with_workload
        from llmsim.api.verdicts.verdict import check_backend
        from llmsim.simulation.run import simulate
        from llmsim.validation.logs.recording import recording_of

        prepared = with_workload(
            self._compiled(changed or {}, calibration),
            self._settings(changed or {}, calibration),
            self._source,
            record_series=False,
            record_steps=False,
        )
        results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
        if results.interrupted:
            raise KeyboardInterrupt
        check_backend(results)
        self._done()
        return recording_of(results)

    def diagnosis(
        self, real: "Recording", skip_seconds: float, with_constants: float = float("inf")
    ) -> "Diagnosis | None":
        """The option that explains a log better than constants of the machine do, whose best score
        is given; None where none does.
        """
        from llmsim.lowering.adjust.calibration import calibration_of
        from llmsim.validation.fit.doctor import diagnose
        from llmsim.validation.fit.suspects import Described

        groups = self._compiled({}, self.settings.calibration).deployment.groups
        answering = [group for group in groups if group.pd_type != "prefill"]
        first = answering[0]
        described = Described(first.engine, len(answering), first.tp)

        def simulate(changed: Mapping[str, Any], constants: Mapping[str, float]) -> "Recording":
            calibration = calibration_of(first.hardware, "log doctor", constants)
            return self.recording(calibration if constants else self.settings.calibration, changed)

        return diagnose(real, simulate, described, skip_seconds, with_constants)

    def _settings(
        self, changed: Mapping[str, Any], calibration: "Calibration | None"
    ) -> "RunOptions":
        of_engine = {name: value for name, value in changed.items() if name not in _EDITS}
        engine = {**self.settings.engine, **of_engine}
        return replace(self.settings, engine=engine, calibration=calibration)

    def _compiled(
        self, changed: Mapping[str, Any], calibration: "Calibration | None"
    ) -> "Compiled":
        from llmsim.api.preparation.prepare import compile_cluster

        cluster = _with_changes(self._cluster, changed) if changed else self._cluster
        return compile_cluster(cluster.parsed(), self._settings(changed, calibration))


def inputs_of(run: Path) -> "RunInputs | None":
    """What the run of a folder was given; None for files without a folder's manifest, and for
    folders that do not say so.
    """
    from llmsim.api.checked.run_inputs import RunInputs

    if not (run / "manifest.json").is_file():
        return None
    try:
        return RunInputs.of_folder(run)
    except LlmsimError:
        return None


def diagnosed(
    comparison: "Comparison",
    real: "Recording",
    inputs: "RunInputs",
    log: Path,
    done: Callable[[], None] = lambda: None,
) -> "Comparison":
    """The comparison with what the log doctor finds when it runs the simulated run again; unchanged
    where simulation and log are close, or where they served different requests.
    """
    from llmsim.api.run import settings_of
    from llmsim.validation.fit.doctor import FEWEST, served_other_work, sick
    from llmsim.validation.logs.recording import Finding

    few = comparison.num_paired < FEWEST
    if few or not sick(comparison) or served_other_work(comparison):
        return comparison
    if comparison.num_paired > MOST:
        left_out = Finding("doctor", False, LEFT_OUT.format(comparison.num_paired))
        return dataclass_replace(comparison, findings=(*comparison.findings, left_out))

    def described() -> Trial:
        return Trial(inputs.cluster, inputs.workload, settings_of(inputs), done)

    where = log.absolute()
    with inputs.in_directory():
        found = _examined(comparison, real, described, where)
    findings = sorted((*comparison.findings, *found), key=lambda finding: not finding.unsound)
    return dataclass_replace(comparison, findings=tuple(findings))


def _examined(
    comparison: "Comparison", real: "Recording", described: Callable[[], Trial], log: Path
) -> "list[Finding]":
    """What the doctor says: of the arrivals first, and of options at the arrivals of the log."""
    from llmsim.validation.fit.doctor import arrivals_explain
    from llmsim.validation.logs.recording import Finding

    try:
        trial = described()
        if trial.settings.arrivals is None and real.has_arrivals:
            trial = trial.at_arrivals_of(log)
            arrivals = arrivals_explain(comparison, trial.recording(trial.settings.calibration))
            if arrivals is not None:
                return [arrivals]
        diagnosis = trial.diagnosis(real, comparison.skip_seconds)
    except LlmsimError as error:
        return [Finding("doctor", False, f"the log doctor cannot run it again: {error}")]
    return [] if diagnosis is None else [diagnosis.finding]


def _with_changes(cluster: Cluster, changed: Mapping[str, Any]) -> Cluster:
    """The cluster file without the options that are changed, and with the devices and instances
    that the changes ask for.
    """
    fields = copy.deepcopy(cluster.fields())
    names = {same for name in changed for same in SAME_OPTION.get(name, (name,))}
    for place in (*_instances(fields), fields.get("engine") or {}):
        for key in [key for key in place if key.replace("-", "_") in names]:
            if key not in WIDTHS:
                del place[key]
    for name in changed.keys() & _EDITS.keys():
        _EDITS[name](fields, changed[name])
    return Cluster.of(fields, cluster.name)


def _instances(fields: Fields) -> list[Fields]:
    """Every instance of a cluster file, those of its layouts included."""
    layouts = (fields.get("layouts") or {}).values()
    of_nodes = [one for node in fields.get("nodes", []) for one in node.get("instances", [])]
    return [*of_nodes, *(one for layout in layouts for one in layout)]


def _set_width(fields: Fields, width: int) -> None:
    """Tensor parallelism of every instance; its devices grow or shrink with it."""
    for instance in _instances(fields):
        named = next((key for key in WIDTHS[:2] if instance.get(key)), None)
        before = instance[named] if named else 1
        instance.setdefault(named or TENSOR_PARALLEL_SIZE, 1)
        for key in WIDTHS:
            if instance.get(key):
                instance[key] = max(1, instance[key] * width // before)


def _set_instances(fields: Fields, number: int) -> None:
    """As many instances in place of one; raises InputError where there are several."""
    nodes = fields.get("nodes", [])
    if len(nodes) != 1 or len(_instances(fields)) != 1:
        raise InputError("more instances are tried of a cluster that has one instance on one node")
    (node,), (instance,) = nodes, _instances(fields)
    node.pop("num_instances", None)
    node["instances"] = [copy.deepcopy(instance) for _ in range(number)]


_EDITS: Mapping[str, Callable[[Fields, Any], None]] = {
    TENSOR_PARALLEL_SIZE: _set_width,
    NUM_INSTANCES: _set_instances,
}
"""What changes the cluster's machines in place of an option of its engines."""
