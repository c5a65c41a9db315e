"""How a model's dimensions fall on tensor- and expert-parallel ranks, by vLLM's rules."""

from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.model.layout import Layout
from llmsim.model.parallel.context_parallel import context_problem
from llmsim.model.parallel.expert_parallel import exchange_problem
from llmsim.model.types import ModelConfig

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to this multiple before it splits it over ranks
(VocabParallelEmbedding).
"""


class RankShape(Struct, frozen=True):
    """The dimensions of one rank; KV heads are replicated when tp exceeds them."""

    heads: int
    kv_heads: int
    qkv_width: int
    """Output width of the fused qkv projection: (heads + 2 kv_heads) * head_dim."""
    attention_width: int
    intermediate: int
    vocab: int
    experts: int
    moe_intermediate: int
    shared_intermediate: int = 0


def padded_rows(rows: int) -> int:
    """Rows of a table of tokens as vLLM allocates it."""
    return -(-rows // VOCAB_PADDING) * VOCAB_PADDING


def padded_vocab_size(model: ModelConfig) -> int:
    """Rows of the embedding as vLLM allocates it."""
    return padded_rows(model.vocab_size)


def kv_heads_per_rank(model: ModelConfig, layout: Layout) -> int:
    """At least one: with more ranks than KV heads each head lives on tp / num_key_value_heads
    ranks.

    The compressed cache of latent attention serves all heads: every rank holds it whole.
    """
    return 1 if model.latent is not None else max(1, model.num_key_value_heads // layout.tp)


def rank_shape(model: ModelConfig, layout: Layout) -> RankShape:
    """Dimensions of one rank; InputError naming the rule if the layout cannot split the model
    evenly.
    """
    problem = layout_problem(model, layout)
    if problem:
        dp = f", dp {layout.dp}" if layout.dp > 1 else ""
        tp_rule = problem.startswith("tp ")
        raise InputError(
            f"{model.name} cannot run with tp {layout.tp}, ep {layout.ep}{dp}: {problem}",
            field="tp_size" if tp_rule else None,
            value=layout.tp if tp_rule else None,
        )
    tp, ep = layout.tp, layout.ep
    heads = model.num_attention_heads // tp
    kv_heads = kv_heads_per_rank(model, layout)
    return RankShape(
        heads=heads,
        kv_heads=kv_heads,
        qkv_width=(heads + 2 * kv_heads) * model.head_dim,
        attention_width=heads
        * (model.latent.v_dim if model.latent is not None else model.head_dim),
        intermediate=model.intermediate_size // layout.ffn_ranks,
        vocab=padded_vocab_size(model) // tp,
        experts=model.num_experts // ep,
        # ep of the ranks share out the experts; the ranks that hold the same experts split their
        # width.
        moe_intermediate=model.moe_intermediate_size * ep // layout.expert_ranks,
        shared_intermediate=model.shared_expert_intermediate_size // _shared_expert_ranks(layout),
    )


def layout_problem(model: ModelConfig, layout: Layout) -> str:
    """The rule that a layout breaks, with its numbers; "" if it is fine."""
    tp, ep = layout.tp, layout.ep
    if tp < 1 or ep < 1:
        return "tp and ep must be at least 1"
    rules = [] if layout.domain == "ffn" else _attention_rules(model, tp)
    attends = layout.domain == "attention"
    cut = "tp x dp" if layout.shared_ffn else "tp"
    rules += [
        (width % layout.ffn_ranks == 0, f"{cut} must divide intermediate_size {width}")
        for width, _ in model.dense_groups
        if not attends
    ]
    if model.linear is not None:
        rules.append(model.linear.rule(tp))
    rules.append(
        (
            _keys_are_near(model),
            "a stage has layers that use keys and values of an earlier layer in another stage",
        )
    )
    rules.append(
        (
            all(layers % model.sublayers == 0 for layers in layout.stage_layers),
            f"stages must have whole layers of {model.sublayers} attentions each, but they have "
            f"{list(layout.stage_layers)}",
        )
    )
    rules.append(
        (
            model.hyper is None or not (layout.domain or layout.sequence_parallel),
            "its residual streams are neither shared out by sequence parallelism nor sent to other "
            "devices for the FFN",
        )
    )
    if model.num_experts == 0:
        rules.append((ep == 1, "the model has no experts, so ep must be 1"))
    elif not attends:
        rules += _expert_rules(model, layout)
    broken = next((rule for holds, rule in rules if not holds), "")
    return (
        broken
        or context_problem(model, layout)
        or exchange_problem(model, layout)
        or _block_problem(model, layout)
    )


def _attention_rules(model: ModelConfig, tp: int) -> list[tuple[bool, str]]:
    """Whether each rule about attention and vocabulary holds, and the rule."""
    vocabulary = padded_vocab_size(model)
    if model.latent is not None:
        heads = model.num_attention_heads
        rules = [(heads % tp == 0, f"tp must divide num_attention_heads {heads}")]
    elif model.keeps_states_alone:
        rules = []
    else:
        shapes = model.attention_shapes or (model.attention_shape,)
        rules = [rule for shape in shapes for rule in shape.rules(tp)]
    if model.compressed is not None:
        groups = model.compressed.out_groups
        rules.append((groups % tp == 0, f"tp must divide the {groups} groups of its outputs"))
    if model.layer_inputs is not None:
        rows, width = padded_rows(model.layer_inputs.rows), model.layer_inputs.total_width
        rules.append(
            (
                rows % tp == 0 and width % tp == 0,
                f"tp must divide the {rows} rows and {width} columns of the layers' embeddings",
            )
        )
    return [
        *rules,
        (vocabulary % tp == 0, f"tp must divide the padded vocabulary {vocabulary}"),
    ]


def _keys_are_near(model: ModelConfig) -> bool:
    """Whether layers without keys of their own follow one of their kind that has some."""
    kinds = model.layer_kinds or ("full",) * model.num_layers
    have = set()
    for kind, shares in zip(kinds, model.kv_sharing_layers, strict=False):
        if shares and kind not in have:
            return False
        if not shares:
            have.add(kind)
    return True


def _expert_rules(model: ModelConfig, layout: Layout) -> list[tuple[bool, str]]:
    """Whether each rule about experts holds, and the rule."""
    ep = layout.ep
    width, shared = model.moe_intermediate_size, model.shared_expert_intermediate_size
    return [
        (
            layout.expert_ranks % ep == 0,
            f"ep must divide {_devices(layout)}, so raise tp to a multiple of {ep}, or lower ep",
        ),
        (
            model.num_experts % ep == 0,
            f"ep must divide the number of experts {model.num_experts}",
        ),
        (
            layout.redundant_experts % ep == 0,
            f"ep must divide num_redundant_experts {layout.redundant_experts}",
        ),
        (
            width * ep % layout.expert_ranks == 0,
            f"{_devices(layout)} / ep must divide the experts' intermediate size {width}",
        ),
        (
            shared % _shared_expert_ranks(layout) == 0,
            (
                f"tp{' x dp' * layout.shared_ffn} must divide the shared experts' intermediate "
                f"size {shared}"
            ),
        ),
    ]


def _shared_expert_ranks(layout: Layout) -> int:
    """Over how many ranks shared experts are cut; where tokens are shared out, every rank has them
    whole (vLLM).
    """
    return 1 if layout.shares_tokens_out else layout.ffn_ranks


def _devices(layout: Layout) -> str:
    """The product of what experts are spread over."""
    pcp, dp = layout.prefill_context, layout.dp
    return "tp" + f" x prefill_context_parallel_size {pcp}" * (pcp > 1) + f" x dp {dp}" * (dp > 1)


def _block_problem(model: ModelConfig, layout: Layout) -> str:
    """vLLM refuses weights quantised in square blocks whose shard on a rank is not whole blocks;
    rows it pads.
    """
    if model.weight_block is None or model.weight_block[0] == 1:
        return ""
    rows, columns = model.weight_block
    widths = []
    attends = model.latent is None and not model.keeps_states_alone
    if attends and layout.domain != "ffn":
        shapes = model.attention_shapes or (model.attention_shape,)
        widths += [("heads", shape.query_width // layout.tp) for shape in shapes]
    alone = layout.domain == "attention"
    if model.num_moe_layers and not alone:
        widths.append(
            (
                "experts' intermediate size",
                model.moe_intermediate_size * layout.ep // layout.expert_ranks,
            )
        )
    if not alone:
        widths += [("intermediate size", one // layout.ffn_ranks) for one, _ in model.dense_groups]
    for what, width in widths:
        if width % rows or width % columns:
            return (
                f"its quantisation blocks of {rows} x {columns} must divide the {what} per rank, "
                f"{width}"
            )
    return ""
