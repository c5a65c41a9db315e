"""How a replica of a model is split over ranks, and what one of them executes."""

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "gemm",
    "attention",
    "linear_attention",
    "elementwise",
    "moe",
    "embedding",
    "sampler",
    "collective",
]
Feature = Literal["tokens", "sequences", "attention", "gathered", "decodes", "prefills"]
"""What an operator's time depends on: a rank's tokens, its sequences, its batch, the tokens of all
data-parallel ranks, those of decodes, or those of prompts before context parallelism shares them
out.
"""
Part = Literal["prologue", "layer", "head"]
PowerClass = Literal["compute", "memory", "link"]
Collective = Literal[
    "", "all_reduce", "all_gather", "reduce_scatter", "send", "all_to_all", "broadcast"
]
Among = Literal["tp", "dcp", "pcp", "members", "everyone", "stages"]
"""The ranks of a collective: tensor-parallel, decode or prefill context-parallel, the same rank of
every data-parallel member, all ranks of all of them, or two pipeline stages.
"""


@dataclass(frozen=True)
class Rows:
    """How an all-to-all of tokens sends them: one row of `row_bytes` for each (token, expert) or
    (token, rank).
    """

    per: Literal["expert", "rank"]
    row_bytes: int
    slots: int = 0
    """Tokens of one rank in one round; 0: all in one."""
    back: bool = False
    """From the experts to the tokens' ranks."""


@dataclass(frozen=True)
class Layout:
    """How one model replica is split: `tp` ranks, of which the experts are spread over `ep` (1:
    every rank has all).

    With `dp` > 1 that many replicas share one set of experts: `ep` counts over all of their tp x dp
    ranks, and tokens travel to the experts and back. `stage_layers` are the layers of each pipeline
    stage (empty: one stage), `stage` the one whose share is meant.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    stage_layers: tuple[int, ...] = ()
    stage: int = 0
    redundant_experts: int = 0
    """Second copies of experts, spread over the ranks like the experts themselves."""
    sequence_parallel: bool = False
    """Norms see 1/tp of the tokens, between a reduce-scatter and an all-gather (vLLM's
    enable_sequence_parallelism).
    """
    prefill_context: int = 1
    """Ranks that share the tokens of prompts; a stage has tp x prefill_context devices."""
    shared_ffn: bool = False
    """Dense FFNs and shared experts are cut over the ranks of all `dp` replicas, too."""
    exchange: str = "allgather_reducescatter"
    """vLLM's all2all_backend (exchange.py)."""
    decode_context: int = 1
    """Of the tp ranks, those that share the KV cache of one head by tokens (vLLM's decode context
    parallelism).
    """

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return max(1, len(self.stage_layers))

    @property
    def context_ranks(self) -> int:
        """Ranks over which the tokens of a sequence's KV cache are dealt."""
        return self.prefill_context * self.decode_context

    @property
    def stage_ranks(self) -> int:
        """Devices of one pipeline stage of one replica."""
        return self.tp * self.prefill_context

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the experts: each holds 1 / ep of them, cut in expert_ranks
        / ep.
        """
        return self.stage_ranks * self.dp

    @property
    def ffn_ranks(self) -> int:
        """Ranks over which a dense FFN is cut."""
        return self.tp * self.dp if self.shared_ffn else self.tp

    @property
    def shares_tokens_out(self) -> bool:
        """Whether a replica's tensor-parallel ranks send a part of its tokens each to
        the experts.
        """
        return (
            self.dp > 1 and self.tp > 1 and self.ep == self.expert_ranks and self.exchange != "pplx"
        )

    def ranks(self, among: Among) -> int:
        """How many ranks a collective is among."""
        return {
            "tp": self.tp,
            "dcp": self.decode_context,
            "pcp": self.prefill_context,
            "members": self.dp,
            "everyone": self.stage_ranks * self.dp,
            "stages": 2,
        }[among]

    def stride(self, among: Among) -> int:
        """How far apart these ranks are in a stage, whose tensor-parallel ranks come first."""
        return self.tp if among == "pcp" else 1


@dataclass(frozen=True)
class Operator:
    """One kernel of an iteration on one tensor-parallel rank; executed `repeat` times per step.

    All sizes are per rank. "per token" means per unit of `feature`: a scheduled token for "tokens"
    and "attention", a scheduled sequence for "sequences". Bytes are what an ideal cache would move:
    inputs once, outputs once; weights are in `weight_bytes` (per execution) and never in
    `read_bytes_per_token`.
    """

    name: str
    kind: Kind
    feature: Feature
    part: Part
    repeat: int
    power_class: PowerClass
    gemm_n: int = 0
    """Output width; the GEMM is (tokens or sequences) x gemm_k by gemm_k x gemm_n; 0 where the
    operator is no GEMM.
    """
    gemm_k: int = 0
    heads: int = 0
    kv_heads: int = 0
    """Replicated: at least 1, also when tp exceeds the model's KV heads."""
    head_dim: int = 0
    window: int = 0
    """Attention only: sees the last `window` tokens (or, `chunked`, its own window-aligned chunk);
    0: all.
    """
    chunked: bool = False
    experts_total: int = 0
    experts_local: int = 0
    topk: int = 0
    expert_groups: tuple[int, int] = (1, 1)
    """(groups, groups of one token): a token's experts are all in so many of the groups."""
    moe_inter: int = 0
    """Width of one expert on this rank."""
    hidden: int = 0
    weight_dtype: str = ""
    """Of this operator's weights ("" if it has none): router and lm_head stay 16 bit in a quantised
    model.
    """
    weight_bytes: int = 0
    read_bytes_per_token: int = 0
    write_bytes_per_token: int = 0
    flops_per_token: int = 0
    """2 per multiply-add. Attention: 0, see `flops_per_context_token`."""
    units: tuple[int, int] = (1, 1)
    """The rank works on this ratio of the feature's count, rounded up: (1, tp) behind a
    reduce-scatter.
    """
    context_ranks: int = 1
    """Attention only: a decode finds 1 / context_ranks of its KV on this rank."""
    query_ranks: int = 1
    """Attention only: decodes are computed for the query heads of so many ranks."""
    collective: Collective = ""
    among: Among = "tp"
    rows: Rows | None = None
    """Of an all-to-all: what it sends."""
    collective_bytes_per_token: int = 0
    """Size of the full tensor that is reduced or gathered, per token or sequence; of a send, what
    each rank sends.
    """
    kv_bytes_per_context_token: int = 0
    """Attention only: K and V bytes read for every cached token that a sequence attends to."""
    flops_per_context_token: int = 0
    """Attention only: for each (new token, attended token) pair; of prefills, where decodes differ.
    """
    decode_flops_per_context_token: int = 0
    """The same for decodes: latent attention computes them on the compressed cache."""
    state_bytes_per_sequence: int = 0
    """Linear attention only: the state that a step reads and writes for every sequence."""

    def units_of(self, count: Any) -> Any:
        """What the rank works on at a count of the feature; ints or integer arrays."""
        share, of = self.units
        return -(-count * share // of)


_NAMES = (
    (
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "logits_gather",
        "stage_gather",
        "hidden_gather",
        "tokens_gather",
    ),
    ("dispatch", "combine", "context_dispatch", "context_combine", "ffn_gather", "ffn_scatter"),
    ("kv_gather", "query_gather", "lse_gather", "output_scatter", "context_lse", "context_reduce"),
    ("norm_sum",),
)
COLLECTIVES = frozenset(name for names in _NAMES for name in names)
"""Names of the collectives, what a pipeline stage sends aside: their costs carry no kind, only a
name.
"""


def collective(
    name: str,
    what: Collective,
    among: Among,
    size: int,
    *,
    part: Part,
    repeat: int,
    feature: Feature = "tokens",
) -> Operator:
    """A collective over `size` bytes per unit of the feature: of the whole tensor; of a send, what
    each rank sends.
    """
    return Operator(
        name=name,
        kind="collective",
        feature=feature,
        part=part,
        repeat=repeat,
        power_class="link",
        collective=what,
        among=among,
        collective_bytes_per_token=size,
    )
