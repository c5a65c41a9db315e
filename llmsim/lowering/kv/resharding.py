"""What each decode rank needs of which prefill rank, for any two layouts."""

from itertools import accumulate, count
from math import gcd, lcm
from typing import TYPE_CHECKING

from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.errors import NotYetError
from llmsim.model import Dtypes, Layout, ModelConfig, dtype_bytes
from llmsim.model.memory.sizes import state_bytes_per_layer

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

Part = tuple[list[int], int, int, int]
"""Layers that keep the same, bytes per token and layer, bytes of state per layer, and how many
blocks at the end of a prompt are kept (0: all).
"""
Share = tuple[int, int, list[Part]]
"""Prefill rank, decode rank, parts."""


def kv_shares(
    model: ModelConfig, dtypes: Dtypes, prefill: Layout, decode: Layout, block_size: int = 1
) -> tuple[Share, ...]:
    """The KV that goes from prefill to decode ranks; every decode rank gets exactly what its layout
    stores.

    Ranks are numbered stage by stage. KV heads are split over the ranks of a stage in order, or
    replicated when there are more ranks than heads: then the ranks that need a head take turns at
    the ranks that have it. Latent attention stores one whole latent on every rank. The state of
    linear attention is split by heads; it is one per sequence, however long that is. Layers with a
    sliding window hand over the blocks of the window and one more (vLLM 0.24's NIXL connector);
    chunked ones hand over whole prompts, as there their window is no kind of its own by default.
    Ranks that share sequences by tokens (context parallelism) get and give the tokens that they
    hold, of n ranks every n-th.
    """
    shares = []
    for first_target, (start, stop) in zip(
        count(0, decode.stage_ranks), _stages(model, decode), strict=False
    ):
        for first_source, (other_start, other_stop) in zip(
            count(0, prefill.stage_ranks), _stages(model, prefill), strict=False
        ):
            layers = range(max(start, other_start), min(stop, other_stop))
            if not layers:
                continue
            for rank in range(decode.stage_ranks):
                needed = _heads_from(model, dtypes, prefill, decode, rank)
                states = _states_from(model, dtypes, prefill.tp, decode.tp, rank)
                for source in sorted({*needed, *states}):
                    parts = _parts(
                        model, layers, needed.get(source, 0), states.get(source, 0), block_size
                    )
                    if parts:
                        shares.append((first_source + source, first_target + rank, parts))
    return tuple(shares)


def hands_over_states(model: ModelConfig) -> bool:
    """Whether some layers keep a state, of which a hand-over has the one at the end."""
    return model.linear is not None and model.layers_of("linear") > 0


def prefill_all_but_last_token(model: ModelConfig, scheduler: str) -> bool:
    """Whether prefill instances leave the last token of a prompt out: a state cannot be taken back
    by one token. SGLang's compute all of it, and send the first token of the answer along.
    """
    return hands_over_states(model) and scheduler != SGLANG


def of_several_kinds(model: ModelConfig) -> bool:
    """Whether some layers keep something else than every token."""
    return model.layers_of("full") + model.layers_of("chunked") != model.num_layers


def pieces_of_block(model: ModelConfig) -> int:
    """Pieces of memory that a block of a layer is in: keys and values apart, or one latent, with
    what an indexer keeps beside it (vLLM 0.24: NixlConnectorWorker.register_kv_caches).
    """
    if model.latent is None:
        return 2
    return 1 if model.indexer is None else 2


def kept_tokens(model: ModelConfig, block_size: int) -> int:
    """Tokens that layers with a sliding window hand over, at most: its blocks and one more, as a
    window need not begin with a block (vLLM 0.24: blocks_per_sw).
    """
    return (-(-model.window // block_size) + 1) * block_size if model.window else 0


def draft_shares(source: "LoweredGroup", target: "LoweredGroup") -> tuple[Share, ...]:
    """The KV of the drafters' own layers, numbered behind the model's. They run where the last
    pipeline stage does.
    """
    assert source.draft is not None and target.draft is not None
    model, block_size = target.draft.model, target.engine.block_size
    first_layer = target.model.num_layers
    first_source, first_target = _last_stage(source.layout), _last_stage(target.layout)
    layouts = source.draft.layout, target.draft.layout
    tps = layouts[0].tp, layouts[1].tp
    shares = []
    for rank in range(target.layout.tp):
        alone = tps[1] == 1  # every rank drafts for itself
        needed = _heads_from(model, target.dtypes, *layouts, 0 if alone else rank)
        for holder, per_token in sorted(needed.items()):
            sender = rank % source.layout.tp if tps[0] == 1 else holder
            parts = [
                ([first_layer + layer for layer in layers], size, state, tail)
                for layers, size, state, tail in _parts(
                    model, range(model.num_layers), per_token, 0, block_size
                )
            ]
            if parts:
                shares.append((first_source + sender, first_target + rank, parts))
    return tuple(shares)


def _last_stage(layout: Layout) -> int:
    """Its first rank."""
    return layout.tp * (max(1, len(layout.stage_layers)) - 1)


def _parts(
    model: ModelConfig, layers: range, per_token: int, state: int, block_size: int
) -> list[Part]:
    tail = kept_tokens(model, block_size) // block_size
    kinds = model.layer_kinds or ("full",) * model.num_layers
    parts = []
    for names, part in (
        (("full", "chunked", "both"), (per_token, 0, 0)),
        (("sliding",), (per_token, 0, tail)),
        (("linear", "both"), (0, state, 0)),
    ):
        own = [layer for layer in layers if kinds[layer] in names]
        if own and any(part[:2]):
            parts.append((own, *part))
    return parts


def _heads_from(
    model: ModelConfig, dtypes: Dtypes, prefill: Layout, decode: Layout, rank: int
) -> dict[int, int]:
    """Bytes per token and layer that a decode rank needs of each prefill rank of a stage.

    Of n and m ranks that share tokens, ranks have tokens in common where their places are equal
    modulo gcd(n, m): one in lcm(n, m).
    """
    size = int(dtype_bytes(dtypes.kv))
    if model.latent is not None:
        per_head, heads = model.latent_row_bytes(dtypes.kv), 1
        if model.indexer is not None:
            if model.num_indexer_layers < model.num_layers:
                raise NotYetError(
                    f"{model.name}: layers that share an indexer's choice are not handed over yet"
                )
            per_head += model.indexer.cached_bytes
    elif model.indexer is not None:
        raise NotYetError(
            f"{model.name}: keys of an indexer that chooses blocks are not handed over yet; run "
            "prefill and decode on the same instances"
        )
    else:
        per_head, heads = 2 * model.head_dim * size, model.num_key_value_heads
    common, cycle = (how(prefill.context_ranks, decode.context_ranks) for how in (gcd, lcm))
    here = _token_place(decode, rank)
    needed: dict[int, int] = {}
    for head in _heads_of(rank % decode.tp, decode.tp, heads):
        for there in range(here % common, prefill.context_ranks, common):
            holders = [
                other
                for other in range(prefill.stage_ranks)
                if head in _heads_of(other % prefill.tp, prefill.tp, heads)
                and _token_place(prefill, other) == there
            ]
            source = holders[rank % len(holders)]
            needed[source] = needed.get(source, 0) + -(-per_head // cycle)
    return needed


def _token_place(layout: Layout, rank: int) -> int:
    """Which of the `context_ranks` parts of a sequence's tokens a rank of a stage holds (vLLM's
    total_cp_rank).
    """
    return rank // layout.tp * layout.decode_context + rank % layout.tp % layout.decode_context


def _states_from(
    model: ModelConfig, dtypes: Dtypes, prefill_tp: int, decode_tp: int, rank: int
) -> dict[int, int]:
    """Bytes of state per layer that a decode rank needs of each prefill rank: of equal parts, those
    in common.
    """
    if model.linear is None:
        return {}
    size = state_bytes_per_layer(model.linear, decode_tp, dtypes)
    start, stop = (
        rank * prefill_tp,
        (rank + 1) * prefill_tp,
    )  # in parts of 1 / (prefill_tp * decode_tp)
    states = {}
    for source in range(prefill_tp):
        common = range(max(start, source * decode_tp), min(stop, (source + 1) * decode_tp))
        if common:
            states[source] = (
                size * (common.stop - start) // prefill_tp
                - size * (common.start - start) // prefill_tp
            )
    return states


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
