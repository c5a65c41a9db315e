"""From checked options to something that can be simulated, once or many times."""

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.cluster import Cluster
from llmsim.api.workload import DatasetText
from llmsim.config.errors import InfeasibleError
from llmsim.core import Note
from llmsim.results.requests.classes import Objectives

if TYPE_CHECKING:
    from llmsim.api.preparation.compiled import KnownGroups
    from llmsim.api.workload import WorkloadSource
    from llmsim.config import Cluster as ClusterModel
    from llmsim.config import Deployment
    from llmsim.core import Clients, Results, Workload
    from llmsim.lowering import LoweredDeployment, LoweringOptions
    from llmsim.lowering.kv.tiers import LoweredTiers
    from llmsim.lowering.network.cluster_network import ClusterNetwork
    from llmsim.simulation.options import SimulationOptions


class Compiled(Struct, frozen=True, eq=False):
    """What a run's options make of a cluster, whatever the workload; made once for many runs."""

    deployment: "Deployment"
    lowered: "LoweredDeployment"
    tiers: "LoweredTiers | None"


class Prepared(Struct, frozen=True, eq=False):
    """What options describe, read, resolved and lowered; ready to simulate."""

    deployment: "Deployment"
    lowered: "LoweredDeployment"
    workload: "Workload"
    simulation: "SimulationOptions"
    cluster: Cluster | None = None
    """The cluster file; None where the caller has it."""
    objectives: Objectives = field(default_factory=Objectives)
    """Latency targets of the command line and of the cluster file."""

    def as_run(self, results: "Results") -> "Prepared":
        """With the groups of all layouts that served, where the cluster has layouts."""
        layouts = self.lowered.layouts
        if layouts is None:
            return self
        deployment, lowered = layouts.as_run(results.layout_visits)
        return replace(self, deployment=deployment, lowered=lowered)


def trial(options: RunOptions) -> "Results":
    """Runs it to its end without outputs: one evaluation of an ablation or a calibration.

    Raises what the parts raise, and KeyboardInterrupt where `simulate` would give the results of a
    part.
    """
    from llmsim.api.verdicts.verdict import check_backend, circular_sentence
    from llmsim.simulation.run import simulate

    prepared = prepare(options)
    results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    if results.interrupted:
        raise KeyboardInterrupt
    check_backend(results)
    if results.circular:
        raise InfeasibleError(circular_sentence(results))
    return results


def prepare(options: RunOptions) -> Prepared:
    """Reads and lowers what the options name; raises what the parts raise (InputError,
    InfeasibleError).
    """
    cluster = Cluster.load(options.cluster)
    compiled = compile_cluster(cluster.parsed(), options)
    recorded = options.run_dir is not None or options.timeline is not None
    prepared = with_workload(
        compiled,
        options,
        DatasetText(options.dataset),
        record_series=recorded or options.log_level != "WARNING",
        record_steps=recorded,
    )
    if options.graphs is not None:
        from llmsim.export.step_graph.graph import refuse_without_steps
        from llmsim.rounds.selection import check_selection

        workload, groups = prepared.workload, prepared.lowered.groups
        later = prepared.lowered.layouts is not None
        num_groups = None if later else len(groups)
        check_selection(options.graphs, num_groups, len(workload), workload.request_id)
        if options.graphs.group is not None and options.graphs.group < len(groups):
            refuse_without_steps(groups, options.graphs.group)
        simulation = replace(
            prepared.simulation, record_steps=True, record_rounds=True, record_transfers=True
        )
        prepared = replace(prepared, simulation=simulation)
    return replace(prepared, cluster=cluster)


def compile_cluster(
    cluster: "ClusterModel", options: RunOptions, known: "KnownGroups | None" = None
) -> Compiled:
    """Resolves and lowers a cluster, with the groups of earlier ones where they are known; raises
    InputError and InfeasibleError.
    """
    from llmsim.config import EngineOverrides, resolve
    from llmsim.config.plugins import plugins_allowed
    from llmsim.lowering import lower
    from llmsim.lowering.device_memory import sheet_memory
    from llmsim.lowering.kv.load_failures import check_load_failures

    how = _lowering_options(options)

    def resolved(of: "ClusterModel") -> "Deployment":
        return resolve(
            of,
            EngineOverrides(**options.engine),
            options.switches,
            options.kv_transfer,
            options.kv_transfer_mode,
            sheet=sheet_memory(cluster.path),
        )

    def lowered_of(of: "Deployment", beside: "ClusterNetwork | None" = None) -> "LoweredDeployment":
        if known is None:
            return lower(of, how, beside=beside)
        return known.lowered(of, how, beside)

    with plugins_allowed(options.allow_plugins):
        if cluster.layouts is None:
            deployment = resolved(cluster)
            lowered = lowered_of(deployment)
        else:
            from llmsim.api.preparation.layouts import plans_of

            layouts = plans_of(cluster, options, resolved, lowered_of)
            first = layouts.plans[layouts.initial]
            deployment, lowered = first.deployment, layouts.initial_with_links()
    tiers = None if lowered.layouts is None else lowered.layouts.tiers
    if options.tiers is not None and lowered.layouts is None:
        from llmsim.lowering.kv.tiers import lower_tiers

        assert lowered.network is not None
        tiers = lower_tiers(deployment, lowered.groups, options.tiers, lowered.network)
    check_load_failures(deployment, lowered.groups, options.tiers)
    noted = replace(lowered, notes=_all_notes(cluster, options, deployment, lowered))
    return Compiled(deployment, noted, tiers)


def _all_notes(
    cluster: "ClusterModel",
    options: RunOptions,
    deployment: "Deployment",
    lowered: "LoweredDeployment",
) -> tuple[str, ...]:
    """Versions that stand in for others, notes of the memory and the lowering, and what the file
    and the options give without effect.
    """
    from llmsim.api.checked.ineffective import overridden_options, unused_notes
    from llmsim.api.checked.ineffective_fields import unused_fields
    from llmsim.config.engine.args import stand_in_notes
    from llmsim.lowering.device_memory import sheet_memory_notes
    from llmsim.lowering.network.cluster_network import idle_pool_notes
    from llmsim.lowering.offload.host_links import host_link_notes

    media = _media(options, lowered)
    unused = (
        *idle_pool_notes(deployment, media),
        *overridden_options(cluster, options),
        *unused_notes(options, deployment, lowered),
        *unused_fields(cluster, deployment, lowered, media),
    )
    versions = stand_in_notes(group.engine for group in deployment.groups)
    details = (*sheet_memory_notes(deployment), *lowered.notes)
    links = host_link_notes(deployment, lowered.groups, media)
    return (*map(Note, versions), *details, *links, *map(Note, unused))


def _media(options: RunOptions, lowered: "LoweredDeployment") -> tuple[str, ...]:
    """The memories behind the devices that keep KV."""
    if lowered.kv_offloading:
        return ("CPU",)
    return options.tiers.media if options.tiers is not None else ()


def with_workload(
    compiled: Compiled,
    options: RunOptions,
    source: "WorkloadSource",
    *,
    record_series: bool,
    record_steps: bool,
) -> Prepared:
    """Reads the workload and says how to run it; raises InputError."""
    from llmsim.api.checked.ineffective import unused_of_images
    from llmsim.scheduling.policies import PolicySpecs
    from llmsim.simulation.options import SimulationOptions

    workload, clients = _workload(options, compiled.lowered, source)
    simulation = SimulationOptions(
        router=options.router,
        decode_router=options.decode_router,
        session_affinity=options.session_affinity,
        seed=options.seed,
        series_interval_ps=options.log_interval_ps,
        record_series=record_series,
        record_steps=record_steps,
        clients=clients,
        tiers=compiled.tiers,
        check_every_step=options.check_every_step,
        horizon_ps=options.horizon_ps,
        policies=options.policies or PolicySpecs(),
    )
    if options.outside:
        from llmsim.rounds.backend import backend_of
        from llmsim.rounds.outside import OutsideTimes

        times = OutsideTimes(compiled.lowered, backend_of(options.outside))
        simulation = replace(simulation, step_times=times)
    objectives = _objectives(options, compiled.deployment, workload)
    absent = [
        *_absent_classes(compiled.deployment, workload),
        *unused_of_images(compiled.deployment, workload),
    ]
    workload = replace(workload, notes=(*workload.notes, *absent)) if absent else workload
    return Prepared(
        compiled.deployment, compiled.lowered, workload, simulation, objectives=objectives
    )


def _objectives(options: RunOptions, deployment: "Deployment", workload: "Workload") -> Objectives:
    """The targets of `--goodput`, and those of the cluster file's classes that the trace has.

    Raises InputError for a class of `--goodput` that no request has.
    """
    given = options.objectives or Objectives()
    present = set(workload.slo_class or ())
    given.check(present, "--goodput")
    declared = {name: dict(limits) for name, limits in deployment.slo_classes if name in present}
    return given.over(declared)


def _absent_classes(deployment: "Deployment", workload: "Workload") -> list[str]:
    """A note for each class of the cluster file that no request has."""
    present = set(workload.slo_class or ())
    return [
        f'slo_classes.{name} changes nothing: no request of the trace has slo_class "{name}"'
        for name, _ in deployment.slo_classes
        if name not in present
    ]


def _lowering_options(options: RunOptions) -> "LoweringOptions":
    from llmsim.lowering import LoweringOptions

    return LoweringOptions(
        cost_source=options.cost_source,  # type: ignore[arg-type]  # checked by _one_of
        collectives=options.collectives,  # type: ignore[arg-type]
        expert_routing=options.expert_routing,
        cost_tables=options.cost_tables,
        cost_plugin=options.cost_plugin,
        predict_attention=options.predict_attention,
        profile_dirs=options.profile_dirs,
        profile_dirs_given=options.profile_dirs_given,
        network=options.network,  # type: ignore[arg-type]
        exact=options.exact,
        tiers=options.tiers is not None,
        collectives_contend=options.collectives_contend,
        disabled_terms=options.disabled_terms,
        calibration=options.calibration,
    )


def _workload(
    options: RunOptions, lowered: "LoweredDeployment", source: "WorkloadSource"
) -> "tuple[Workload, Clients | None]":
    """The requests with the habits of their clients, at recorded times where a log is given."""
    from llmsim.workload.clients import ClientOptions, with_clients

    workload = source.load(lowered.models, lowered.granularity, options.num_reqs)
    if options.arrivals is not None:
        from llmsim.validation.logs.arrivals import with_recorded_arrivals

        workload = with_recorded_arrivals(workload, options.arrivals)
    habits = ClientOptions(options.max_concurrency, options.think_time, options.timeout_s)
    return with_clients(workload, habits, options.seed)
