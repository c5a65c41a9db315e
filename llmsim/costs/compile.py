"""Compiles the operators of a deployment to integer cost tables, from the most trusted source that knows each one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.core import Provenance
from llmsim.costs import cache
from llmsim.costs.bundle import BundleSource
from llmsim.costs.bundle_files import BundleFiles, find_bundle
from llmsim.costs.context import context_attention
from llmsim.costs.database import Database, find_database
from llmsim.costs.expert_loads import curve_price, drawn_table
from llmsim.costs.external import ExternalTable, read_external
from llmsim.costs.light import bandwidth_differs, floor_of, light_of, own_light_of
from llmsim.costs.older_bundle import OlderBundleSource
from llmsim.costs.roofline import RooflineSource
from llmsim.costs.source import AttentionCost, CompiledCosts, CostRequest, CostSource, Curve, OpCost, TableFeature
from llmsim.costs.tables import read_content
from llmsim.model.hardware import LOCATION, hardware_names, hardware_spellings

if TYPE_CHECKING:
    from llmsim.model import Operator

CODE_VERSION = 1
"""Version of the cached form; raised when old files must not be read any more."""


@dataclass(frozen=True)
class Available:
    """What was found for a request, before anything is read."""

    bundle: BundleFiles | None
    database: Database | None
    roofline: bool
    notes: tuple[str, ...]
    tables: tuple[ExternalTable, ...] = ()


def compile_costs(request: CostRequest) -> CompiledCosts:
    """Tables for every operator of the request; from the disk cache when the same inputs were compiled before.

    Raises InputError when the chosen source does not know the deployment, or a table of a bundle is malformed.
    """
    available = look(request)
    if request.plugin:  # its code may depend on anything
        return build(request, available)
    key = cache_key(request, available)
    found = cache.load(key)
    if found is not None:
        return found
    costs = build(request, available)
    problem = cache.store(key, costs)
    return replace(costs, notes=(*costs.notes, problem)) if problem else costs


def look(request: CostRequest) -> Available:
    """Finds the sources that the request allows and that know its device; InputError when there is none."""
    notes: list[str] = []
    bundle, reason = (None, "")
    if request.source in ("auto", "bundle"):
        try:
            bundle, reason = find_bundle(request)
        except OSError as error:
            raise InputError(f'the profile directory "{error.filename}" cannot be read ({error.strerror})') from None
        if bundle is None and request.source == "bundle":
            raise InputError(f"no profile bundle: {reason}")
        if bundle is None and request.profile_dirs:
            notes.append(f"no profile bundle is used: {reason}")
    database = find_database(request) if request.source != "roofline" or request.collectives == "measured" else None
    if request.predict_attention and bundle is None:
        raise InputError(
            "--enable-attn-prediction fits the attention rows of a profile bundle; give one with --profile-dir"
            + (f" ({reason})" if reason else "")
        )
    if request.source == "silicon":
        _need_silicon(request, database)
    tables = tuple(read_external(path) for path in request.cost_tables)
    if request.source == "external" and not tables:
        raise InputError("the cost source external needs a table; give --cost-table FILE")
    roofline = light_of(request) is not None
    if bundle is None and request.hardware is None and not tables and not request.plugin:
        raise InputError(
            f'the hardware "{request.hardware_name}" is not known'
            f"{nearest(request.hardware_name, hardware_spellings())}; use one of {', '.join(hardware_names())}, "
            f"the path of a data sheet (.json, as in {LOCATION}), or a profile bundle "
            "(--profile-dir)" + (f": {reason}" if reason and request.profile_dirs else "")
        )
    return Available(bundle, database, roofline, tuple(notes), tables)


def _need_silicon(request: CostRequest, database: Database | None) -> None:
    if request.hardware is None or request.hardware.silicon_system is None:
        raise InputError(
            f'the silicon database has no tables for the hardware "{request.hardware_name}"; '
            "use a profile bundle (--profile-dir) or the cost source roofline"
        )
    if database is None or not database.has_operators:
        raise InputError(
            f'the silicon database of "{request.hardware.silicon_system}" is not there; install the Python package '
            "aiconfigurator-core (it has no build for every platform), or use the cost source roofline"
        )


def cache_key(request: CostRequest, available: Available) -> str:
    """Hash of the request, of the bundle's bytes, and of the database's version and tables."""
    digest = hashlib.sha256(f"{CODE_VERSION} {np.__version__}\n{request!r}\n{available!r}\n".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):  # tables made by other code are not reused
        digest.update(f"{source.name} {source.stat().st_size} {source.stat().st_mtime_ns}\n".encode())
    if available.bundle is not None:
        for path in available.bundle.paths():
            data = read_content(path)
            digest.update(f"{path} {len(data)}\n".encode())
            digest.update(data)
    for table in available.tables:
        digest.update(read_content(table.path))
    if available.database is not None:
        digest.update(available.database.fingerprint().encode())
    return digest.hexdigest()


def build(request: CostRequest, available: Available) -> CompiledCosts:
    """Compiles without the cache."""
    sources = _sources(request, available)
    notes: list[str] = list(available.notes)
    ops: list[OpCost] = []
    linked: dict[str, None] = {}
    tabled: dict[str, list[OpCost]] = {}
    attentions: list[AttentionCost] = []
    collective = _collective_pricer(request, available)
    for op in request.operators:
        if op.kind == "attention":
            attentions.append(_attention(op, sources, request, notes))
        elif op.kind == "collective":
            curve = _own_collective(op, sources, request) or collective(op)
            if curve is None:
                linked[op.name] = None
            else:
                tabled.setdefault(_among(op), []).append(_op_cost(op, curve))
        else:
            ops.append(_loaded(op, *_first_answer(op, sources, request, notes), request, notes))
    if not attentions:
        raise InputError(f"the model {request.model.name} has no attention operator; only transformers are modelled")
    # Collectives among the same ranks are all priced in one way, since their differences matter more than their errors.
    for ranks in dict.fromkeys(_among(op) for op in request.operators if op.name in linked):
        linked |= dict.fromkeys(cost.name for cost in tabled.pop(ranks, ()))
    ops += [cost for costs in tabled.values() for cost in costs]
    ops.extend(extra for source in sources[:1] for extra in _extra_ops(source, request))
    for source in sources:
        notes.extend(note for note in source.notes() if note not in notes)
    origin = dict.fromkeys([*(op.source for op in ops), *(one.source for one in attentions)])
    by_sheet = isinstance(sources[0], RooflineSource)
    if bandwidth_differs(request) and not by_sheet:
        notes.append(_unused_bandwidth(request))
    notes += [_unused_links(ranks, costs[0]) for ranks, costs in tabled.items()]
    light = own_light_of(request) if by_sheet else light_of(request)
    floor = floor_of(request, light, enforce=sources[0].enforce_floor)
    first, *more = attentions
    costs = CompiledCosts(
        tuple(ops), first, floor, tuple(linked), tuple(notes), tuple(origin), "", more_attention=tuple(more)
    )
    return replace(costs, table_hash=hashlib.sha256(cache.pack(replace(costs, notes=()))).hexdigest()[:16])


def _among(op: Operator) -> str:
    """Which ranks a collective is among."""
    return {
        "stages": "pipeline stages",
        "members": "data-parallel ranks",
        "everyone": "data-parallel ranks",
        "dcp": "context-parallel ranks",
        "pcp": "context-parallel ranks",
        "tp": "the ranks of a group",
    }[op.among]


def _unused_links(ranks: str, example: OpCost) -> str:
    return (
        f"collectives among {ranks} take measured times ({example.name}: {example.source}): link_bw and link_latency "
        "of the cluster file are not used for them (--collective-costs links uses them)"
    )


def _unused_bandwidth(request: CostRequest) -> str:
    light, given = light_of(request), request.group_memory_bandwidth_bytes_per_s
    assert light is not None
    return (
        f"npu_mem.mem_bw of the cluster file ({given / 1e9:g} GB/s) is not used: the times of {request.hardware_name} "
        f"were measured on a device with {light.memory_bandwidth_bytes_per_s / 1e9:g} GB/s "
        "(--cost-source roofline uses it)"
    )


def _sources(request: CostRequest, available: Available) -> list[CostSource]:
    sources: list[CostSource] = []
    if available.bundle is not None:
        source_class = OlderBundleSource if available.bundle.older else BundleSource
        sources.append(source_class(request, available.bundle))
    if request.plugin:
        from llmsim.costs.plugin import load_plugin

        sources.append(load_plugin(request))
    if available.tables and request.source in ("auto", "external"):
        from llmsim.costs.external_source import ExternalSource

        sources.append(ExternalSource(request, available.tables))
    if available.database is not None and available.database.has_operators and request.source in ("auto", "silicon"):
        from llmsim.costs.silicon import SiliconSource  # pyarrow is imported only where a table is read

        sources.append(SiliconSource(request, available.database))
    if available.roofline and request.source not in ("bundle", "external"):
        sources.append(RooflineSource(request))
    return sources


def _first_answer(
    op: Operator, sources: list[CostSource], request: CostRequest, notes: list[str]
) -> tuple[Curve, CostSource]:
    for index, source in enumerate(sources):
        curve = source.operator(op, op.units_of(request.counts(op.feature)))
        if curve is not None:
            curve = _by_feature(op, curve, request.counts(op.feature))
            if index:
                notes.append(f"{op.name} is not in the {sources[0].name} source; its time is from {curve.source}")
            return curve, source
    names = " and ".join(source.name for source in sources)
    raise InputError(f'no time is known for the operator "{op.name}" on "{request.hardware_name}" in {names}')


def _by_feature(op: Operator, curve: Curve, last: int) -> Curve:
    """Times by what the rank works on -> times by the feature."""
    if op.units == (1, 1):
        return curve
    units = op.units_of(np.arange(last + 1))
    power_uw = None if curve.power_uw is None else curve.power_uw[units]
    return replace(curve, ps=curve.ps[units], provenance=curve.provenance[units], power_uw=power_uw)


def _loaded(op: Operator, curve: Curve, source: CostSource, request: CostRequest, notes: list[str]) -> OpCost:
    """The operator's cost; of experts that tokens load unevenly, with the times drawn for every layer."""
    cost = _op_cost(op, curve)
    routing = request.expert_routing
    alone = op.experts_local == op.experts_total and request.expert_placement.redundant == 0
    if op.kind != "moe" or routing.balanced or (alone and source.name == "silicon" and routing.name == "POWER_LAW"):
        return cost
    priced = getattr(source, "experts_us", None)
    price = priced(op) if priced is not None else curve_price(op, curve.ps, light_of(request))
    last = request.counts(op.feature)
    provenance = Provenance.INTERPOLATED if priced is not None else Provenance.SCALED
    table, fullest = drawn_table(
        routing, op.repeat, op.experts_total, op.topk, last, request.expert_placement, price, int(provenance)
    )
    notes.append(
        f"{routing.label.removeprefix('--expert-routing-policy ')}: at {min(1024, last)} tokens the fullest of "
        f"{request.expert_placement.ranks} ranks has {fullest:.2f} times the mean load of experts"
    )
    return replace(cost, drawn=table, source=f"{curve.source}, loads drawn ({routing.name})")


def _attention(op: Operator, sources: list[CostSource], request: CostRequest, notes: list[str]) -> AttentionCost:
    """Of the first source that has it; as these layers see their batch."""
    for index, source in enumerate(sources):
        cost = source.attention(op) if op.context_ranks == 1 else context_attention(op, source, request)
        if cost is None:
            continue
        if index:
            notes.append(f"{op.name} is not in the {sources[0].name} source; its time is from {cost.source}")
        return replace(cost, name=op.name, window=op.window, chunked=op.chunked)
    names = " and ".join(source.name for source in sources)
    raise InputError(f'no time is known for the operator "{op.name}" on "{request.hardware_name}" in {names}')


def _op_cost(op: Operator, curve: Curve) -> OpCost:
    feature: TableFeature = "tokens" if op.feature == "attention" else op.feature
    return OpCost(
        op.name, op.part, op.repeat, feature, curve.ps, curve.provenance, curve.source, curve.power_uw
    )  # fmt: skip


def _extra_ops(source: CostSource, request: CostRequest) -> list[OpCost]:
    """Costs that belong to a source as a whole rather than to one operator (the launch gap of isolated kernels)."""
    extra = getattr(source, "extra_ops", None)
    return list(extra()) if extra is not None else []


def _own_collective(op: Operator, sources: list[CostSource], request: CostRequest) -> Curve | None:
    """What a plug-in or a table of the user's says about a collective; they come before tables and links."""
    own = [source for source in sources if source.name in ("blackbox", "external") or source.name.startswith("plug-in")]
    return next((curve for source in own if (curve := source.operator(op, request.counts(op.feature)))), None)


def _collective_pricer(request: CostRequest, available: Available) -> Callable[[Operator], Curve | None]:
    """Who prices collectives: measured tables where the database prices the operators, else the cluster's links.

    Beside a user's own bundle the links that the user states come before another machine's table of tensor-parallel
    collectives. Between data-parallel ranks of one node the card's own NCCL table comes first: their messages are
    large, where tables of one kind of card agree. Nothing measured spans nodes or pipeline stages.
    """
    wanted = request.collectives
    database = available.database
    if wanted == "links" or (wanted == "auto" and request.source == "roofline"):
        return lambda op: None
    if not any(op.kind == "collective" for op in request.operators):
        return lambda op: None
    pricer = None
    if database is not None:
        from llmsim.costs.silicon_comm import CollectiveTables

        pricer = CollectiveTables(request, database)

    def price(op: Operator) -> Curve | None:
        among = _among(op)
        if among == "pipeline stages" or (among == "data-parallel ranks" and request.spans_nodes):
            return None
        own = available.bundle is not None or available.tables or request.plugin
        if wanted == "auto" and own and among in ("the ranks of a group", "context-parallel ranks"):
            return None
        if op.collective in ("all_to_all", "broadcast"):  # no table knows these kernels
            return None
        ranks = request.layout.ranks(op.among)
        curve = pricer.operator(op, request.counts(op.feature), ranks) if pricer is not None else None
        if curve is None and wanted == "measured":
            raise InputError(
                f"there is no measured table of {op.name} over {ranks} devices of "
                f'"{request.hardware_name}"; use collectives "links"'
            )
        return curve

    return price
