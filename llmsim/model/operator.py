"""What one rank executes: the union of operators, a class for each kind of kernel."""

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from llmsim.core import TableFeature
from llmsim.model.layout import Among as Among
from llmsim.model.layout import Layout as Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Kind = Literal[
    "gemm",
    "attention",
    "linear_attention",
    "elementwise",
    "moe",
    "embedding",
    "sampler",
    "collective",
    "lora",
    "lora_copy",
    "encoder_attention",
]
Feature = Literal[TableFeature, "attention"]
"""What an operator's time depends on: a count of the batch, or the whole batch."""
Part = Literal["prologue", "layer", "head"]
Block = Literal[
    "",
    "attention",
    "indexer",
    "state_space",
    "mlp",
    "router",
    "latent_in",
    "latent_out",
    "experts",
    "shared_experts",
]
"""The block of a layer that an operator belongs to; "": norms, sums of branches, and what is in no
layer.
"""
Sees = Literal["full", "sliding", "chunked", "block_sparse", "compressed", "compressed_sparse"]
PowerClass = Literal["compute", "memory", "link"]
CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "send", "all_to_all", "broadcast"
]


class Operator(Struct, frozen=True, kw_only=True):
    """One kernel of an iteration on one tensor-parallel rank, executed `repeat` times per step; the
    base of the union.

    All sizes are per rank. "per token" means per unit of `feature`: a scheduled token for "tokens"
    and "attention", a scheduled sequence for "sequences". Bytes are what an ideal cache would move:
    inputs once, outputs once; weights are in `weight_bytes` (per execution) and never in
    `read_bytes_per_token`.
    """

    kind: ClassVar[Kind]
    """The name of the class in tables and files; code matches on the class."""
    power_class: ClassVar[PowerClass]

    name: str
    """Identifies the operator in tables, files and messages; no behaviour depends on it."""
    repeat: int
    feature: Feature = "tokens"
    part: Part = "layer"
    in_layers: tuple[int, ...] = ()
    """Numbers of the layers that have it, counted from the stage's first; empty: the first
    `repeat`, which are all of them in a program that `operators` lists.
    """
    block: Block = ""
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

    def units_of(self, count: Any) -> Any:
        """What the rank works on at a count of the feature; ints or integer arrays."""
        share, of = self.units
        return -(-count * share // of)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Answers for a field of another kind with its earlier default, and warns."""
            if name not in FIELDS_OF_OTHERS:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            owners, default = FIELDS_OF_OTHERS[name]
            sentence = f"{type(self).__name__} has no {name}; match on {owners} before reading it"
            warnings.warn(sentence, FutureWarning, stacklevel=2)
            return default


FIELDS_OF_OTHERS: dict[str, tuple[str, Any]] = {
    "gemm_n": ("Gemm", 0),
    "gemm_k": ("Gemm", 0),
    "heads": ("Attention or StateSpace", 0),
    "kv_heads": ("Attention or StateSpace", 0),
    "head_dim": ("Attention or StateSpace", 0),
    "window": ("Attention", 0),
    "chunked": ("Attention", False),
    "context_ranks": ("Attention", 1),
    "query_ranks": ("Attention", 1),
    "kv_bytes_per_context_token": ("Attention", 0),
    "flops_per_context_token": ("Attention", 0),
    "decode_flops_per_context_token": ("Attention", 0),
    "state_bytes_per_sequence": ("StateSpace", 0),
    "experts_total": ("Moe or AllToAll", 0),
    "experts_local": ("Moe", 0),
    "always": ("Moe", 0),
    "topk": ("Moe or AllToAll", 0),
    "expert_groups": ("Moe or AllToAll", (1, 1)),
    "moe_inter": ("Moe", 0),
    "collective": ("Collective", ""),
    "among": ("Collective", "tp"),
    "rows": ("AllToAll", None),
    "collective_bytes_per_token": ("Collective", 0),
}
"""Field that every operator once had -> the classes that have it, and the default elsewhere.

Plug-ins may read such a field before they look at the kind; llmsim matches first.
"""


class Gemm(Operator, frozen=True, kw_only=True):
    """A matrix product of (tokens or sequences) x `gemm_k` by `gemm_k` x `gemm_n`."""

    kind: ClassVar[Kind] = "gemm"
    power_class: ClassVar[PowerClass] = "compute"

    gemm_n: int
    gemm_k: int
    cut: Literal["", "columns", "rows"] = ""
    """How tensor parallelism cuts the weights of an MLP; "": otherwise, or not at all."""
    reads_attention: bool = False
    """Its input is what attention has just written, not a norm or an activation."""


class SeenBeside(Struct, frozen=True):
    """The last tokens that a query sees as they are, beside a compressed context."""

    window: int
    kv_bytes_per_token: int
    flops_per_token: int


class ContextExpansion(Struct, frozen=True):
    """How latent attention turns the cache back into keys and values, for the prompts that have
    tokens there.
    """

    each_cached: tuple["Gemm | Elementwise", ...]
    """Kernels over the cached tokens of a step's prompts."""
    each_new: "Elementwise"
    """Adds what a prompt's new tokens see of the cache to what they see of each other."""


class Attention(Operator, frozen=True, kw_only=True):
    """Softmax attention of the layers of one kind."""

    kind: ClassVar[Kind] = "attention"
    power_class: ClassVar[PowerClass] = "compute"

    heads: int
    kv_heads: int
    """Replicated: at least 1, also when tp exceeds the model's KV heads."""
    head_dim: int
    value_dim: int = 0
    """Of a value head; 0: as `head_dim`, or latent attention."""
    sees: Sees = "full"
    """Which layers: those that see everything, the last tokens, their own chunk, blocks that an
    indexer chooses, or a compressed context.
    """
    window: int = 0
    """Tokens that the layers see: the last ones, or a window-aligned chunk; 0: all."""
    sparse: bool = False
    """Each token sees `window` tokens that an indexer chose for it."""
    context_ranks: int = 1
    """A decode finds 1 / context_ranks of its KV on this rank."""
    query_ranks: int = 1
    """Decodes are computed for the query heads of so many ranks."""
    beside: "SeenBeside | None" = None
    """What each query sees besides, in the same kernel."""
    expansion: "ContextExpansion | None" = None
    """What prompts run first on what is cached; None: they attend to the cache as it is."""
    kv_bytes_per_context_token: int
    """K and V bytes read for every cached token that a sequence attends to."""
    flops_per_context_token: int
    """For each (new token, attended token) pair; of prefills, where decodes differ."""
    decode_flops_per_context_token: int
    """The same for decodes: latent attention computes them on the compressed cache."""

    @property
    def chunked(self) -> bool:
        """Whether a token sees its own chunk of `window` tokens, not the last `window`."""
        return self.sees == "chunked"

    @property
    def on_latents(self) -> "Attention":
        """The same where prompts attend to the cached latents as decodes do: one KV head, and a
        decode's flops for each pair.
        """
        flops = self.decode_flops_per_context_token
        return replace(self, kv_heads=1, flops_per_context_token=flops, expansion=None)


class IndexerScores(Attention, frozen=True, kw_only=True):
    """Scores by which sparse attention chooses the tokens that it sees."""


class StateSpace(Operator, frozen=True, kw_only=True):
    """The recurrence of layers that keep a state: linear attention or a state space."""

    kind: ClassVar[Kind] = "linear_attention"
    power_class: ClassVar[PowerClass] = "compute"

    heads: int
    kv_heads: int
    head_dim: int
    state_bytes_per_sequence: int
    """The state that a step reads and writes for every sequence."""


class Elementwise(Operator, frozen=True, kw_only=True):
    """A kernel that streams what the kernels around it write and read."""

    kind: ClassVar[Kind] = "elementwise"
    power_class: ClassVar[PowerClass] = "memory"

    reduces: bool = False
    """Whether the kernel reduces along each row, as a norm does."""
    kernels: int = 1
    """Kernels that the engine launches for it."""


class ResidualNorm(Elementwise, frozen=True, kw_only=True):
    """A norm of the residual stream, which sequence parallelism shares out over the ranks."""

    feeds_projection: bool
    """Whether a column-parallel layer reads it; a norm behind a block's output feeds a norm."""
    feeds_ffn: bool = False
    """Whether that layer is of the FFN, which may be on devices of its own."""


class StreamMix(Elementwise, frozen=True, kw_only=True):
    """Residual streams, summed up in front of a block or mixed behind it."""

    side: Literal["in", "out"]
    streams: int
    mixed: bool = True
    """Behind a block each stream gets a share of all of them, not of itself alone."""


class Embedding(Operator, frozen=True, kw_only=True):
    """A look-up of table rows."""

    kind: ClassVar[Kind] = "embedding"
    power_class: ClassVar[PowerClass] = "memory"


class Sampler(Operator, frozen=True, kw_only=True):
    """The choice of a token from the logits."""

    kind: ClassVar[Kind] = "sampler"
    power_class: ClassVar[PowerClass] = "memory"


class Moe(Operator, frozen=True, kw_only=True):
    """The experts of a rank, grouped into one kernel."""

    kind: ClassVar[Kind] = "moe"
    power_class: ClassVar[PowerClass] = "compute"

    experts_total: int
    topk: int
    expert_groups: tuple[int, int] = (1, 1)
    """(groups, groups of one token): a token's experts are all in so many of the groups."""
    experts_local: int
    """Of `experts_total`, those that this rank holds."""
    always: int = 0
    """Shared experts in the same kernel, which every token takes beside the `topk` it chooses."""
    moe_inter: int
    """Width of one expert on this rank."""

    @property
    def held(self) -> int:
        """Experts in `weight_bytes`."""
        return self.experts_local + self.always

    def touched(self, tokens: "Floats") -> "Floats":
        """Experts of the rank that tokens which choose at random touch, by expectation:
        local (1 - (1 - topk / total)^tokens), and all shared ones.
        """
        chosen = 1.0 - (1.0 - self.topk / self.experts_total) ** tokens
        return self.experts_local * chosen + self.always * (tokens > 0)

    @property
    def tokens_per_pair(self) -> float:
        """Tokens that give the rank one pair of a token and an expert, by expectation."""
        total = self.experts_total
        return total / (self.topk * self.experts_local + self.always * total)


class LoraKernel(Operator, frozen=True, kw_only=True):
    """What adapters add to a linear layer: the kernels of its two small matrix products by the
    tokens, or the matrices that these read by the adapters.
    """

    kind: ClassVar[Kind] = "lora"
    power_class: ClassVar[PowerClass] = "memory"

    kernels: int
    """Kernels that the engine launches for it; 0: what the kernels of another operator read."""


class CopyRate(Struct, frozen=True):
    """How fast a memory or a link copies, and who says so."""

    bytes_per_s: int
    latency_ps: int
    source: str


class AdapterCopy(Operator, frozen=True, kw_only=True):
    """Adapters come to the devices' slots, or from their files to host memory, before the step."""

    kind: ClassVar[Kind] = "lora_copy"
    power_class: ClassVar[PowerClass] = "link"

    adapter_bytes: int
    """Of one adapter, as far as it is copied here."""
    launches: int
    """Of one adapter: fills with zeros, and copies."""
    rate: CopyRate


class EncoderAttention(Operator, frozen=True, kw_only=True):
    """Patches of an image see each other, in a layer of the vision tower."""

    kind: ClassVar[Kind] = "encoder_attention"
    power_class: ClassVar[PowerClass] = "compute"


class Collective(Operator, frozen=True, kw_only=True):
    """Ranks exchange a tensor."""

    kind: ClassVar[Kind] = "collective"
    power_class: ClassVar[PowerClass] = "link"

    collective: CollectiveKind
    among: Among = "tp"
    collective_bytes_per_token: int
    """Size of the full tensor that is reduced or gathered, per token or sequence; of a send, what
    each rank sends.
    """
    sums_hidden: bool = False
    """Adds up the partial hidden states of row-parallel layers; another layout may replace it."""


class Rows(Struct, frozen=True):
    """How an all-to-all of tokens sends them: one row of `row_bytes` for each (token, expert) or
    (token, rank).
    """

    per: Literal["expert", "rank"]
    row_bytes: int
    slots: int = 0
    """Tokens of one rank in one round; 0: all in one."""
    back: bool = False
    """From the experts to the tokens' ranks."""


class AllToAll(Collective, frozen=True, kw_only=True):
    """Tokens travel to the ranks of the experts that they chose, or back."""

    experts_total: int
    topk: int
    expert_groups: tuple[int, int] = (1, 1)
    """(groups, groups of one token): a token's experts are all in so many of the groups."""
    rows: Rows


Routed = Moe | AllToAll
"""What knows how many experts a router chooses for each token."""


def collective(
    name: str,
    what: CollectiveKind,
    among: Among,
    size: int,
    *,
    part: Part,
    repeat: int,
    feature: Feature = "tokens",
    in_layers: tuple[int, ...] = (),
) -> Collective:
    """A collective over `size` bytes per unit of the feature: of the whole tensor; of a send, what
    each rank sends.
    """
    return Collective(
        name=name,
        feature=feature,
        part=part,
        repeat=repeat,
        in_layers=in_layers,
        collective=what,
        among=among,
        collective_bytes_per_token=size,
    )
