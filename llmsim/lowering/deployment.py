"""Lowers a deployment: its groups, what they share, and what they do together."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.config.deployment import AfdRole, Offloading
from llmsim.config.errors import DoesNotFit, InputError, LlmsimError
from llmsim.config.machine.host_links import Port
from llmsim.core import Note
from llmsim.costs.compile import SCALED_LINKS, UNUSED_LINKS
from llmsim.lowering.adjust.apply import adjusted, adjustment_notes
from llmsim.lowering.adjust.power_cap import clock_ppm
from llmsim.lowering.afd.domain import afd_config, roles_of
from llmsim.lowering.afd.ports import RowPort, met_by_rows, native_port, row_ports, shared_ports
from llmsim.lowering.contention import (
    check_capacities,
    kv_places,
    meeting_groups,
    met_by_others,
    place_memories,
)
from llmsim.lowering.energy.accounting import accounting
from llmsim.lowering.engine_dtype import narrow_notes
from llmsim.lowering.evidence import unlike_published
from llmsim.lowering.group import lower_group, overheads_of, placed_at
from llmsim.lowering.host.startup import refused_blocks, refused_lengths
from llmsim.lowering.kv.kv_transfer import kv_transfer_config, transfer_notes
from llmsim.lowering.kv.offloading import keeps_kv_below, offloading_copies
from llmsim.lowering.kv.sglang_pools import notes_of_pools
from llmsim.lowering.network.cluster_network import (
    ClusterNetwork,
    cluster_network,
    network_beside,
)
from llmsim.lowering.network.contended.collectives import ContendedDomain, contended_domains
from llmsim.lowering.network.contended.domains import Domain, domains_of
from llmsim.lowering.network.contended.meeting import (
    contention_notes,
    kinds_met,
    links_crossed,
    unshared_notes,
)
from llmsim.lowering.network.servers import server_notes
from llmsim.lowering.network.topology import Routes, routes_of
from llmsim.lowering.offload.host_memory import refuse_memories_of_several_nodes
from llmsim.lowering.offload.plan import evicted_notes
from llmsim.lowering.parallel_layout import (
    LoweredLockstep,
    lockstep_groups_of,
    spread_notes,
    syncs_first,
)
from llmsim.lowering.scheduler import NOT_VALIDATED, is_outlined
from llmsim.lowering.types import LoweredDeployment, LoweredGroup, LoweringOptions

MAX_GROUPS = 8192
"""A group's tables and counters take about 0.1 MB."""
OTHER_LINKS = 2.0
"""Links that are so many times as fast as others are other links: files have either direction or
both.
"""


Kinds = dict[tuple[object, ...], LoweredGroup]
"""Lowered groups by what their tables depend on."""


def lower(
    deployment: Deployment,
    options: LoweringOptions,
    known: Kinds | None = None,
    beside: ClusterNetwork | None = None,
) -> LoweredDeployment:
    """Lowers all groups; groups that differ in nothing but their place share their tables.

    `known` keeps the kinds of groups for further deployments with the same links, nodes and
    options, and is added to. `beside` is the network of another layout of the same devices, whose
    places the deployment's memories join.

    Raises InputError for what is inconsistent, InfeasibleError for what does not fit.
    """
    _check_size(deployment)
    refuse_memories_of_several_nodes(deployment)
    deployment = adjusted(deployment, options.calibration, options.disabled_terms)
    models = tuple(dict.fromkeys(group.model_name for group in deployment.groups))
    routes = routes_of(deployment)
    options = replace(options, tiers=keeps_kv_below(deployment, tiers=options.tiers))
    groups, kinds = _lower_groups(deployment, options, models, routes, known)
    if options.profile_dirs_given:
        _require_a_bundle(kinds)
    notes = [*_changes(groups, options), *_notes(deployment, groups, kinds)]
    account = accounting(deployment, groups, options.disabled_terms)
    lockstep_groups = lockstep_groups_of(
        deployment, [(lowered.model, lowered.expanded) for lowered in groups]
    )
    rows = {role.name: row_ports(deployment, role, routes) for role in roles_of(deployment)}
    lockstep_groups += tuple(
        _afd_domain(deployment, groups, role, options, rows[role.name], routes)
        for role in roles_of(deployment)
    )
    for index in (index for lockstep in lockstep_groups for index in lockstep.groups):
        groups[index] = replace(groups[index], expanded=None)  # its lock-step group runs it
    domains = domains_of(deployment, groups, lockstep_groups)
    shared = _shared(deployment, groups, domains, options, rows, routes, beside)
    notes += [*account.notes, *transfer_notes(deployment, groups)]
    notes += unshared_notes(deployment, domains, routes, shared.met, tiers=options.tiers)
    notes += shared.notes
    lockstep_groups = tuple(
        replace(one, ports=shared.ports.get(one.groups, ())) for one in lockstep_groups
    )
    overheads = overheads_of(options.cost_plugin)
    return LoweredDeployment(
        tuple(groups),
        models,
        account,
        shared.network,
        shared.kv_transfers,
        tuple(notes),
        lockstep_groups,
        shared.contended,
        None,
        0 if overheads is None else overheads.output_ps,
        unlike_published(groups, lockstep_groups, options),
        kv_offloading=offloading_copies(deployment, groups, shared.network),
    )


def _check_size(deployment: Deployment) -> None:
    """Raises InputError for more groups than a simulation numbers."""
    if len(deployment.groups) > MAX_GROUPS:
        raise InputError(
            f"{deployment.cluster_path}: {len(deployment.groups)} instances; at most "
            f"{MAX_GROUPS} run in one simulation"
        )


def _lower_groups(
    deployment: Deployment,
    options: LoweringOptions,
    models: Sequence[str],
    routes: Routes | None,
    known: Kinds | None,
) -> tuple[list[LoweredGroup], list[LoweredGroup]]:
    """The groups, and one of each kind."""
    known = {} if known is None else known
    kinds: Kinds = {}
    groups = []
    engines: dict[int, tuple[object, ...]] = {}
    """By identity: instances of a pool have the same one."""
    for group in deployment.groups:
        if id(group.engine) not in engines:
            engines[id(group.engine)] = _engine_key(group.engine)
        kind = _kind(deployment, group, engines[id(group.engine)], routes)
        if kind not in known:
            model_index = models.index(group.model_name)
            known[kind] = _lower_in_place(deployment, group, options, model_index, routes)
        kinds[kind] = known[kind]
        groups.append(placed_at(kinds[kind], group))
    return groups, list(kinds.values())


def _afd_domain(
    deployment: Deployment,
    groups: Sequence[LoweredGroup],
    role: AfdRole,
    options: LoweringOptions,
    ports: Sequence[RowPort],
    routes: Routes | None,
) -> LoweredLockstep:
    """Attention and FFN groups that run every layer together."""
    engine = deployment.groups[role.attention[0]].engine
    is_alone = len(role.attention) == 1  # it has nobody to agree with, and runs no dummies
    interval = 0 if is_alone else engine.dp_sync_interval
    config = afd_config(deployment, groups, role, ports, routes)
    members = (*role.attention, *role.ffn)
    first, attention = syncs_first(engine), len(role.attention)
    return LoweredLockstep(members, interval, first, None, config, options.exact, attention)


def _changes(groups: Sequence[LoweredGroup], options: LoweringOptions) -> list[str]:
    """Notes about schedulers that are not validated, and about calibrated constants."""
    outlined = any(
        one.scheduler is not None and is_outlined(one.engine, one.scheduler) for one in groups
    )
    unproven = [NOT_VALIDATED] if outlined else []
    return [*unproven, *adjustment_notes(options.calibration, options.disabled_terms)]


def _kind(
    deployment: Deployment, group: Group, engine: tuple[object, ...], routes: Routes | None
) -> tuple[object, ...]:
    """What a group's tables depend on: groups of equal kind share them. `engine`: its options."""
    layout = (
        group.tp,
        group.ep,
        group.ffn_tp,
        group.pp,
        group.pcp,
        group.pp_layers,
        group.dp,
        group.dp_nodes,
        group.nnodes,
    )
    offloads = group.offloading != Offloading()
    return (
        group.pd_type,
        _afd_key(group.afd),
        group.model_name,
        group.hardware,
        layout,
        group.memory,
        engine,
        clock_ppm(deployment.accelerator_power(group)),
        _host_ports(deployment, group),
        *((group.node, repr(group.offloading)) if offloads else ()),
        *(_hosts_key(deployment, group) if group.engine.enable_hierarchical_cache else ()),
        *(() if routes is None else routes.signature(routes.domain(deployment, group))),
    )


def _host_ports(deployment: Deployment, group: Group) -> tuple[Port, ...]:
    """What the devices of a group have of their links to the host: all, or those of a stage."""
    each = (group.num_devices, group.num_devices // group.pp, group.tp)
    return tuple(deployment.host_links.port(group.index, together) for together in each)


def _hosts_key(deployment: Deployment, group: Group) -> tuple[object, ...]:
    """What the host pools of a group depend on, by node."""
    nodes = (deployment.nodes[node] for node in group.nodes)
    return tuple(
        (node.host_memory, node.storage, deployment.devices_on(node.index)) for node in nodes
    )


def _afd_key(role: AfdRole | None) -> tuple[object, ...] | None:
    """What the tables of a group depend on of its role: not which groups it works with, and of
    attention not how many.
    """
    if role is None:
        return None
    if role.domain == "attention":
        return (role.domain, role.lanes, role.dispatch)
    sides = (len(role.attention), len(role.ffn), role.row_copies)
    return (role.domain, role.lanes, role.dispatch, *sides)


def _require_a_bundle(lowered: Sequence[LoweredGroup]) -> None:
    """Raises InputError where no group takes its times from a profile folder."""
    if any(one.costs.from_bundle for one in lowered):
        return
    reason = " ".join(lowered[0].costs.notes[:1])
    raise InputError(
        f"--profile-dir: none of the folders serves any group of the cluster ({reason})"
    )


def _notes(
    deployment: Deployment, groups: Sequence[LoweredGroup], kinds: Iterable[LoweredGroup]
) -> tuple[str, ...]:
    """Notes about the groups, each once; `kinds` holds one of several groups that are lowered
    alike.
    """
    kinds = list(kinds)
    notes: list[str] = []
    for lowered in kinds:
        notes += [*lowered.model.notes, *lowered.ledger.notes, *_cost_notes(deployment, lowered)]
        notes += lowered.offload.notes if lowered.offload is not None else ()
        notes += lowered.draft.notes if lowered.draft is not None else ()
        notes += [*refused_lengths(lowered), *refused_blocks(lowered)]
    for lowered in kinds:
        notes += lowered.network_notes
    notes += evicted_notes(deployment)
    for group, lowered in zip(deployment.groups, groups, strict=True):
        notes += spread_notes(group, lowered.model, lowered.layout)
        notes += narrow_notes(lowered.engine, lowered.model)
        notes += notes_of_pools(lowered)
    notes += server_notes(deployment, groups)
    return tuple(dict.fromkeys(notes))


def _cost_notes(deployment: Deployment, lowered: LoweredGroup) -> list[str]:
    """Notes of a group's operator times; what becomes of links changes a decision where the cluster
    file has other ones than the machine whose times are taken.
    """
    given = deployment.link.bandwidth_bytes_per_s[0]
    sheet = lowered.hardware
    known = given if sheet is None else sheet.intra_node_link_bytes_per_s
    if max(given, known) <= OTHER_LINKS * min(given, known):
        return list(lowered.costs.notes)
    return [Note(note) if _of_other_links(note) else note for note in lowered.costs.notes]


def _of_other_links(note: str) -> bool:
    return UNUSED_LINKS in note or SCALED_LINKS in note


class _Shared(Struct, frozen=True, eq=False):
    """What moves between groups, and what it meets."""

    network: ClusterNetwork | None
    """None where everything keeps to itself."""
    kv_transfers: "_native.KvTransferConfig | None" = None
    contended: tuple[ContendedDomain, ...] = ()
    notes: tuple[str, ...] = ()
    ports: "Mapping[tuple[int, ...], tuple[_native.SharedPort, ...]]" = field(default_factory=dict)
    """Of attention and FFN groups that run their layers together, those that others use, too."""
    met: Collection[Domain] = ()
    """Domains whose collectives share links with others."""


def _shared(
    deployment: Deployment,
    groups: list[LoweredGroup],
    domains: Sequence[Domain],
    options: LoweringOptions,
    rows: Mapping[str, Sequence[RowPort]],
    routes: Routes | None,
    beside: ClusterNetwork | None,
) -> _Shared:
    fifo = options.network == "congestion-aware"
    check_capacities(deployment, groups)
    meeting = meeting_groups(deployment, groups, fifo=fifo, tiers=options.tiers)
    crossed = links_crossed(deployment, domains, routes)
    met = kinds_met(crossed) if options.collectives_contend else {}
    contend = options.collectives_contend
    for domain, kinds in met_by_rows(rows, crossed).items() if contend else ():
        met[domain] = met.get(domain, set()) | kinds
    ports = {
        role: shared_ports(deployment, role, rows, crossed, tiers=options.tiers, contend=contend)
        for role in roles_of(deployment)
    }
    if not (deployment.disaggregation or options.tiers or meeting or met or any(ports.values())):
        return _Shared(None)
    if beside is None:
        network = cluster_network(deployment, "fifo" if fifo else "fair", routes)
    else:
        network = network_beside(beside, deployment)
    memories = place_memories(deployment, groups, network)
    if len(memories.pools) > 1:
        stripes = tuple(memories.pools.values())
        network = replace(network, stripes=stripes, pool_devices=stripes)
    met_by_others(deployment, groups, meeting, network, memories)
    kv_transfers = None
    if deployment.disaggregation is not None:
        places = kv_places(deployment, groups, network, memories)
        network = replace(network, kv=tuple(tuple(ranks) for ranks in places))
        kv_transfers = kv_transfer_config(deployment, groups, places)
    contended = contended_domains(
        deployment,
        domains,
        met,
        network,
        crossed,
        routes,
        tiers=options.tiers,
        exact=options.exact,
    )
    notes = contention_notes(met, exact=options.exact)
    native = {
        (*role.attention, *role.ffn): tuple(
            native_port(deployment, role, network, port) for port in taken
        )
        for role, taken in ports.items()
    }
    return _Shared(network, kv_transfers, contended, notes, native, tuple(met))


def _lower_in_place(
    deployment: Deployment,
    group: Group,
    options: LoweringOptions,
    model_index: int,
    routes: Routes | None,
) -> LoweredGroup:
    """Lowers one group; an error says where in the cluster file the group is."""
    try:
        return lower_group(group, deployment, options, model_index, routes)
    except DoesNotFit as error:
        raise error.at(f"{deployment.cluster_path}: {group.field_path}") from None
    except InputError as error:
        raise type(error)(
            f"{deployment.cluster_path}: {group.field_path}: {error}",
            file=str(deployment.cluster_path),
            field=None if error.field is None else f"{group.field_path}.{error.field}",
            value=error.value,
        ) from None
    except LlmsimError as error:
        raise type(error)(f"{deployment.cluster_path}: {group.field_path}: {error}") from None


def _engine_key(engine: EngineArgs) -> tuple[object, ...]:
    return tuple(value for name, value in asdict(engine).items() if name != "origin")
