"""Compiles the operators of a deployment to integer cost tables, from the most trusted source that
knows each one.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.core import Note, Provenance, TableFeature
from llmsim.costs import cache
from llmsim.costs.adapters import adapter_curve
from llmsim.costs.catalog import Available, look, sources_of
from llmsim.costs.collectives import among_whom, collective_pricer, own_collective, whose
from llmsim.costs.context_parallel import context_attention
from llmsim.costs.encoder import encoder_attention_curve
from llmsim.costs.experts.load_sampling import curve_price, fullest_ratio, sampled_table
from llmsim.costs.experts.second_stream import beside_the_others
from llmsim.costs.hardware_limits import (
    bandwidth_differs,
    floor_of,
    own_peak_rates_of,
    peak_rates_of,
)
from llmsim.costs.source import (
    THROUGH_HOST,
    AttentionCost,
    CompiledCosts,
    CostRequest,
    CostSource,
    Curve,
    OpCost,
    SplitAttention,
    SplitGrid,
)
from llmsim.costs.sources.csv_tables import read_content
from llmsim.model import (
    AdapterCopy,
    Attention,
    Collective,
    EncoderAttention,
    LoraKernel,
    Moe,
)

if TYPE_CHECKING:
    from llmsim.model import Operator

SLOW_LINKS = 5.0
"""Times a ring on the data sheet's links: beyond what protocols and small messages cost."""

UNUSED_LINKS = "link_bw and link_latency of the cluster file are not used for them"
SCALED_LINKS = "they are scaled to link_bw and link_latency of the cluster file"
SAME_LINKS = "link_bw and link_latency of the cluster file are those of the data sheet"
"""In notes about collectives whose times are measured."""

CODE_VERSION = 1
"""Version of the cached form; raised when old files must not be read any more."""


def compile_costs(request: CostRequest) -> CompiledCosts:
    """Tables for every operator of the request; from the disk cache when the same inputs were
    compiled before.

    Raises InputError when the chosen source does not know the deployment, or a table of a bundle is
    malformed.
    """
    costs = _compiled(request)
    if not bandwidth_differs(request):
        return costs
    decisive = _unused_bandwidth(request)  # a cached table has plain texts
    notes = tuple(Note(note) if note == decisive else note for note in costs.notes)
    return replace(costs, notes=notes)


def _compiled(request: CostRequest) -> CompiledCosts:
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


def cache_key(request: CostRequest, available: Available) -> str:
    """Hash of the request, of the bundle's bytes, and of the database's version and tables."""
    digest = hashlib.sha256(
        f"{CODE_VERSION} {np.__version__}\n{request!r}\n{available!r}\n".encode()
    )
    digest.update(_code().encode())
    if available.bundle is not None:
        for path in available.bundle.paths():
            data = read_content(path)
            digest.update(f"{path} {len(data)}\n".encode())
            digest.update(data)
    for table in available.tables:
        digest.update(read_content(table.path))
    if available.database is not None:
        digest.update(available.database.fingerprint().encode())
    if available.similar is not None:
        digest.update(available.similar.database.fingerprint().encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """Tables that other code made are not reused."""
    sources = [(one.name, one.stat()) for one in sorted(Path(__file__).parent.rglob("*.py"))]
    return "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in sources)


class _Priced(Struct):
    """What the sources say about the operators of a request, each from the first that knows it."""

    notes: list[str]
    ops: list[OpCost] = field(default_factory=list)
    attentions: list[AttentionCost] = field(default_factory=list)
    tabled: dict[str, list[OpCost]] = field(default_factory=dict)
    """Collectives with a table, by the ranks that take part."""
    linked: dict[str, None] = field(default_factory=dict)
    """Collectives that the links price, in the order of the operators."""
    missing: dict[str, list[str]] = field(default_factory=dict)
    """Operators that the first source does not know, by the source that prices them."""

    def all_ops(self) -> list[OpCost]:
        """The operators, then the collectives with a table."""
        return [*self.ops, *(cost for costs in self.tabled.values() for cost in costs)]


def build(request: CostRequest, available: Available) -> CompiledCosts:
    """Compiles without the cache."""
    sources = sources_of(request, available)
    priced = _priced(request, available, sources)
    _one_source_for_a_rank_group(request, priced)
    extra = [cost for source in sources[:1] for cost in source.extra_ops()]
    ops = beside_the_others(request, [*priced.all_ops(), *extra])
    by_sheet = sources[0].kind == "roofline"
    peak_rates = own_peak_rates_of(request) if by_sheet else peak_rates_of(request)
    first, *more = priced.attentions
    origin = dict.fromkeys([*(op.source for op in ops), *(one.source for one in priced.attentions)])
    costs = CompiledCosts(
        tuple(ops),
        first,
        floor_of(request, peak_rates, enforce=sources[0].enforce_floor),
        tuple(priced.linked),
        tuple(_notes(request, sources, priced)),
        tuple(origin),
        "",
        more_attention=tuple(more),
    )
    table_hash = hashlib.sha256(cache.pack(replace(costs, notes=()))).hexdigest()[:16]
    return replace(costs, table_hash=table_hash)


def _priced(request: CostRequest, available: Available, sources: list[CostSource]) -> _Priced:
    """Asks the sources for every operator. Raises InputError where none knows one of them."""
    priced = _Priced(list(available.notes))
    collective = collective_pricer(request, available)
    for op in request.operators:
        if isinstance(op, Attention):
            priced.attentions.append(_attention(op, sources, request, priced.missing))
        elif isinstance(op, LoraKernel | AdapterCopy):
            priced.ops.append(_op_cost(op, adapter_curve(op, request)))
        elif isinstance(op, EncoderAttention):
            priced.ops.append(_op_cost(op, encoder_attention_curve(op, request)))
        elif isinstance(op, Collective):
            curve = own_collective(op, sources, request) or collective(op)
            if curve is None:
                priced.linked[op.name] = None
            else:
                priced.tabled.setdefault(among_whom(op), []).append(_op_cost(op, curve))
        else:
            curve, source = _first_answer(op, sources, request, priced.missing)
            priced.ops.append(_loaded(op, curve, source, request, priced.notes))
    if not priced.attentions:
        priced.attentions.append(no_attention())
    return priced


def _one_source_for_a_rank_group(request: CostRequest, priced: _Priced) -> None:
    """Leaves all collectives of one rank group to the links where they price one of them: mixing
    sources would distort their ratios.
    """
    collectives = [op for op in request.operators if isinstance(op, Collective)]
    by_links = [among_whom(op) for op in collectives if op.name in priced.linked]
    for ranks in dict.fromkeys(by_links):
        priced.linked |= dict.fromkeys(cost.name for cost in priced.tabled.pop(ranks, ()))


def _notes(request: CostRequest, sources: list[CostSource], priced: _Priced) -> list[str]:
    """What the sources and the choice among them have to say."""
    notes = priced.notes
    for source in sources:
        notes.extend(note for note in source.notes() if note not in notes)
    notes += [
        _missing(sources[0], list(dict.fromkeys(names)), other)
        for other, names in priced.missing.items()
    ]
    if bandwidth_differs(request) and sources[0].kind != "roofline":
        notes.append(_unused_bandwidth(request))
    notes += [_measured_links(ranks, costs, request) for ranks, costs in priced.tabled.items()]
    return notes


def _missing(first: CostSource, names: list[str], other: str) -> str:
    verb, whose = ("is", "its time is") if len(names) == 1 else ("are", "their times are")
    return f"{', '.join(names)} {verb} not in the {first.name} source; {whose} from {other}"


def _measured_links(ranks: str, costs: list[OpCost], request: CostRequest) -> str:
    """On whose links the measured times are."""
    example = costs[0]
    return (
        f"collectives among {ranks} take measured times ({example.name}: {example.source}): "
        f"{_links_used(ranks, costs, request)}"
    )


def _links_used(ranks: str, costs: list[OpCost], request: CostRequest) -> str:
    if not request.links.heeded:
        unused = f"{UNUSED_LINKS} (--collective-costs links uses them)"
        return unused + _beside_sheet(costs, request)
    if any(whose(stated.among) == ranks for stated in request.links.others):
        return f"{SCALED_LINKS} (--collective-costs measured leaves them as they are)"
    return SAME_LINKS + _beside_sheet(costs, request)


def _beside_sheet(costs: list[OpCost], request: CostRequest) -> str:
    """Says where a measured all-reduce is far slower than a ring on the links of the data sheet."""
    reduces = (
        op
        for op in request.operators
        if isinstance(op, Collective) and op.collective == "all_reduce"
    )
    for op in reduces:
        cost = next((one for one in costs if one.name == op.name), None)
        if cost is None or request.hardware is None:
            continue
        ranks, last = request.layout.ranks(op.among), len(cost.ps) - 1
        moved = 2 * (ranks - 1) / ranks * op.collective_bytes_per_token * last
        times = cost.ps[last] / 1e12 / (moved / request.hardware.intra_node_link_bytes_per_s)
        if times > SLOW_LINKS:
            sheet_gb_per_s = request.hardware.intra_node_link_bytes_per_s / 1e9
            remedy = ""
            if request.peer_to_peer is None and THROUGH_HOST in cost.source:
                remedy = (
                    '; "peer_to_peer": true in the instance takes tables of a machine whose '
                    "devices reach each other's memory"
                )
            return (
                f"; that machine's links are slow: at {last} {op.feature} {op.name} takes "
                f"{times:.0f} times as long as on {sheet_gb_per_s:g} GB/s, the data sheet's{remedy}"
            )
    return ""


def _unused_bandwidth(request: CostRequest) -> str:
    peak_rates, given = peak_rates_of(request), request.group_memory_bandwidth_bytes_per_s
    assert peak_rates is not None
    return (
        f"npu_mem.mem_bw of the cluster file ({given / 1e9:g} GB/s) is not used: the times of "
        f"{request.hardware_name} are those of a device with "
        f"{peak_rates.memory_bandwidth_bytes_per_s / 1e9:g} GB/s (--cost-source roofline uses it)"
    )


def _unknown(op: Operator, sources: list[CostSource], request: CostRequest) -> InputError:
    names = " and ".join(source.name for source in sources)
    wider = "" if request.source == "auto" else ", or --cost-source auto to ask the next source"
    return InputError(
        f'no time is known for the operator "{op.name}" on "{request.hardware_name}" in {names}; '
        f"give its times there{wider}"
    )


def _first_answer(
    op: Operator, sources: list[CostSource], request: CostRequest, missing: dict[str, list[str]]
) -> tuple[Curve, CostSource]:
    for index, source in enumerate(sources):
        curve = source.operator(op, op.units_of(request.counts(op.feature)))
        if curve is not None:
            curve = _by_feature(op, curve, request.counts(op.feature))
            if index:
                missing.setdefault(curve.source, []).append(op.name)
            return curve, source
    raise _unknown(op, sources, request)


def _by_feature(op: Operator, curve: Curve, last: int) -> Curve:
    """Times by what the rank works on -> times by the feature."""
    if op.units == (1, 1):
        return curve
    units = op.units_of(np.arange(last + 1))
    power_uw = None if curve.power_uw is None else curve.power_uw[units]
    return replace(curve, ps=curve.ps[units], provenance=curve.provenance[units], power_uw=power_uw)


def _loaded(
    op: Operator, curve: Curve, source: CostSource, request: CostRequest, notes: list[str]
) -> OpCost:
    """The operator's cost; of experts that tokens load unevenly, with the times drawn for every
    layer.
    """
    routing = request.expert_routing
    if isinstance(op, Moe) and routing.waits_for_fullest:
        curve = _of_fullest_rank(op, curve, source, request)
    cost = replace(_op_cost(op, curve), in_bursts=source.in_bursts)
    if not isinstance(op, Moe) or routing.balanced:
        return cost
    alone = op.experts_local == op.experts_total and request.expert_placement.redundant == 0
    if alone and routing.name == source.measured_routing:
        return cost
    priced = source.experts_us(op)
    price = priced or curve_price(op, curve.ps, peak_rates_of(request))
    last = request.counts(op.feature)
    provenance = Provenance.INTERPOLATED if priced is not None else Provenance.SCALED
    table, fullest = sampled_table(
        routing, op, last, request.expert_placement, price, int(provenance)
    )
    notes.append(
        f"{routing.label.removeprefix('--expert-routing-policy ')}: at {min(1024, last)} tokens "
        "the fullest of "
        f"{request.expert_placement.ranks} ranks has {fullest:.2f} times the mean load of experts"
    )
    return replace(cost, sampled=table, source=f"{curve.source}, loads drawn ({routing.name})")


def _of_fullest_rank(op: Moe, curve: Curve, source: CostSource, request: CostRequest) -> Curve:
    """Experts on several ranks take as long as the fullest one: of a router without preferences the
    expectation.
    """
    if request.expert_placement.ranks == 1:
        return curve
    price = source.experts_us(op) or curve_price(op, curve.ps, peak_rates_of(request))
    ratio = fullest_ratio(op, len(curve.ps) - 1, request.expert_placement, price)
    longer = np.floor(curve.ps * ratio + 0.5).astype(np.int64)
    return replace(curve, ps=longer, source=f"{curve.source}, of the fullest rank")


def _attention(
    op: Attention, sources: list[CostSource], request: CostRequest, missing: dict[str, list[str]]
) -> AttentionCost:
    """Of the first source that has it; as these layers see their batch."""
    for index, source in enumerate(sources):
        cost = (
            source.attention(op)
            if op.context_ranks == 1
            else context_attention(op, source, request)
        )
        if cost is None:
            continue
        if index:
            missing.setdefault(cost.source, []).append(op.name)
        by_user = source.kind == "bundle"
        return replace(
            cost, name=op.name, window=op.window, chunked=op.chunked, from_bundle=by_user
        )
    raise _unknown(op, sources, request)


def no_attention() -> SplitAttention:
    """What a program has in place of attention where every layer keeps a state: it runs nowhere."""
    axis = np.array([1, 2])
    none, marks = np.zeros((2, 2), dtype=np.int64), np.zeros((2, 2), dtype=np.uint8)
    grid = SplitGrid(axis, axis - 1, none, marks, axis, axis, none, marks, 0)
    nothing = "the model has no attention"
    return SplitAttention(
        name="no_attention",
        repeat=0,
        grid=grid,
        skew_ps_per_token_q20=0,
        source=nothing,
        skew_source=nothing,
    )


def _op_cost(op: Operator, curve: Curve) -> OpCost:
    feature: TableFeature = "tokens" if op.feature == "attention" else op.feature
    return OpCost(
        op.name,
        op.part,
        op.repeat,
        curve.feature or feature,
        curve.ps,
        curve.provenance,
        curve.source,
        curve.power_uw,
        collective=isinstance(op, Collective) and op.collective != "send",
    )
