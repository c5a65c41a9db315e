"""What each decode rank needs of which prefill rank, for any two layouts, as the core's hand-over wants it."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, count
from typing import TYPE_CHECKING

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.errors import InputError, NotYetError
from llmsim.model import Dtypes, Layout, ModelConfig, dtype_bytes

if TYPE_CHECKING:
    from llmsim.lowering.lowered import LoweredGroup

Share = tuple[int, int, int, int, int]
"""Prefill rank, decode rank, first layer, end layer, bytes per token and layer."""

ROLES = {None: _native.Role.BOTH, "prefill": _native.Role.PREFILL, "decode": _native.Role.DECODE}


def kv_shares(model: ModelConfig, dtypes: Dtypes, prefill: Layout, decode: Layout) -> tuple[Share, ...]:
    """The KV that goes from prefill to decode ranks; every decode rank gets exactly what its layout stores.

    Ranks are numbered stage by stage. KV heads are split over the ranks of a stage in order, or replicated when there
    are more ranks than heads: then the ranks that need a head take turns at the ranks that have it. Latent attention
    stores one whole latent on every rank.
    """
    size = int(dtype_bytes(dtypes.kv))
    if model.latent is not None:
        per_head, heads = model.latent.cached_width * size, 1
    else:
        per_head, heads = 2 * model.head_dim * size, model.num_key_value_heads
    shares = []
    for first_target, (start, stop) in zip(count(0, decode.tp), _stages(model, decode), strict=False):
        for first_source, (other_start, other_stop) in zip(count(0, prefill.tp), _stages(model, prefill), strict=False):
            layers = max(start, other_start), min(stop, other_stop)
            if layers[0] >= layers[1]:
                continue
            for rank in range(decode.tp):
                needed: dict[int, int] = {}
                for head in _heads_of(rank, decode.tp, heads):
                    holders = [other for other in range(prefill.tp) if head in _heads_of(other, prefill.tp, heads)]
                    source = holders[rank % len(holders)]
                    needed[source] = needed.get(source, 0) + per_head
                shares += [
                    (first_source + source, first_target + rank, *layers, size)
                    for source, size in sorted(needed.items())
                ]
    return tuple(shares)


def _stages(model: ModelConfig, layout: Layout) -> list[tuple[int, int]]:
    """First and end layer of each pipeline stage."""
    ends = list(accumulate(layout.stage_layers or (model.num_layers,)))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _heads_of(rank: int, tp: int, heads: int) -> range:
    if tp >= heads:
        head = rank * heads // tp
        return range(head, head + 1)
    each = heads // tp
    return range(rank * each, (rank + 1) * each)


def handover_config(
    deployment: Deployment, lowered: Sequence["LoweredGroup"], kv_places: list[list[int]]
) -> "_native.HandoverConfig":
    """Routes between all prefill and decode groups of a model; `kv_places` by group and rank, on the fabric.

    Raises InputError where the KV of the two sides differs in its element type, NotYetError for models whose layers
    do not all keep every token.
    """
    assert deployment.disaggregation is not None
    how = deployment.disaggregation
    config = _native.HandoverConfig(how.push, how.layerwise, kv_places)
    tables: dict[tuple[object, ...], int] = {}
    for source in deployment.groups:
        for target in deployment.groups:
            if (source.pd_type, target.pd_type) != ("prefill", "decode") or source.model_name != target.model_name:
                continue
            a, b = lowered[source.index], lowered[target.index]
            _check(deployment, source, target, a, b)
            kind = (source.model_name, a.dtypes.kv, a.layout, b.layout)
            if kind not in tables:
                tables[kind] = config.add_table(list(kv_shares(a.model, a.dtypes, a.layout, b.layout)))
            config.add_route(source.index, target.index, tables[kind])
    return config


def _check(deployment: Deployment, source: Group, target: Group, a: "LoweredGroup", b: "LoweredGroup") -> None:
    where = f"{deployment.cluster_path}: {source.field_path} and {target.field_path}"
    if a.dtypes.kv != b.dtypes.kv:
        raise InputError(
            f"{where} hand over KV, but kv_cache_dtype is {a.dtypes.kv} in the first and {b.dtypes.kv} in the second; "
            "give both the same"
        )
    if a.model.layers_of("full") != a.model.num_layers:
        raise NotYetError(
            f"{where} hand over KV of {source.model_name}, whose layers do not all keep every token (sliding "
            "windows, linear attention): that does not run in this version; give these instances no pd_type"
        )


def transfer_notes(deployment: Deployment, lowered: Sequence["LoweredGroup"]) -> tuple[str, ...]:
    """How the KV travels, once per run, for the notes of the summary."""
    if deployment.disaggregation is None:
        return ()
    how = deployment.disaggregation
    sizes: Mapping[str, int] = {
        group.model_name: sum(
            per_layer * (end - first)
            for _, _, first, end, per_layer in kv_shares(low.model, low.dtypes, low.layout, low.layout)
        )
        for group, low in zip(deployment.groups, lowered, strict=True)
        if group.pd_type == "decode"
    }
    listed = ", ".join(f"{name}: {size} B per token" for name, size in sizes.items())
    what = "layer by layer" if how.layerwise else "whole prompts"
    return (f"disaggregated: KV is {'pushed' if how.push else 'pulled'}, {what} ({listed})",)
