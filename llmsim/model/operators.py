"""The operators of one iteration on one rank, in execution order, with what each reads, writes and computes.

vLLM's fused shapes: one qkv GEMM, one gate_up GEMM, grouped experts. With h hidden, d head_dim, H and K the rank's
query and KV heads, i the rank's MLP (or one expert's) width, v the vocabulary, a and c the bytes of an activation and
of a cached element; per token (lm_head, logits_gather and sampler: per scheduled sequence):

    operator        reads                          writes              flops
    embedding       4 + h a  (id and row)          h a                 0
    layernorm       2 h a  (input and residual)    2 h a               5 h (RMSNorm; LayerNorm 8 h)
    GEMM n x k      k a                            n a                 2 n k
    qk_norm         (H + K) d a                    (H + K) d a         4 (H + K) d
    rotary_emb      (H + K + 1) d a  (cos, sin)    (H + K) d a         3 (H + K) d
    attention       (H + 2 K) d a                  H d a + 2 K d c     4 H d per attended token, which reads 2 K d c
    act_fn          2 i a                          i a                 5 i
    moe             s (2 h + 3 i) a                (s (h + 3 i) + h) a 6 s h i
    sampler         (a + 4) v                      4 v                 2 v

MoE: s = topk / ep is the expected number of experts per token on a rank; both GEMMs, the activation between them and
the weighted sum move their intermediates through memory. The sampler is the greedy one: logits to fp32, then argmax,
over the whole vocabulary on every rank. An all_reduce sums h a bytes per token, logits_gather collects (v padded) a
per sequence.
"""

from llmsim.model.layout import RankShape, padded_vocab_size, rank_shape
from llmsim.model.types import Dtypes, Layout, ModelConfig, Operator, dtype_bytes, short_dtype

TOKEN_ID_BYTES = 4


class _Builder:
    """Makes the operators of one (model, layout, dtypes); holds what they share. Read only after construction."""

    def __init__(self, model: ModelConfig, layout: Layout, dtypes: Dtypes) -> None:
        self.model = model
        self.layout = layout
        self.shape: RankShape = rank_shape(model, layout)
        self.weight_dtype = short_dtype(dtypes.weight)
        self.wide_dtype = short_dtype(dtypes.activation)
        self.weight_size = int(dtype_bytes(dtypes.weight))
        self.wide_size = int(dtype_bytes(dtypes.activation))
        self.kv_size = int(dtype_bytes(dtypes.kv))

    def linear_bytes(self, n: int, k: int) -> int:
        """Weights of an n x k linear layer, with its fp32 block scales where the checkpoint has them."""
        size = n * k * self.weight_size
        block = self.model.weight_block
        if block is None or self.weight_dtype != self.model.weight_dtype:
            return size
        return size + 4 * -(-n // block[0]) * -(-k // block[1])

    def norm(self, name: str, part: str, repeat: int) -> Operator:
        hidden, size = self.model.hidden_size, self.wide_size
        bias = self.model.norm_bias
        return Operator(
            name=name,
            kind="elementwise",
            feature="tokens",
            part="head" if part == "head" else "layer",
            repeat=repeat,
            power_class="memory",
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=hidden * size * (2 if bias else 1),
            read_bytes_per_token=2 * hidden * size,
            write_bytes_per_token=2 * hidden * size,
            flops_per_token=(8 if bias else 5) * hidden,
        )

    def gemm(self, name: str, n: int, k: int, *, repeat: int, bias: int = 0, wide: bool = False) -> Operator:
        """A linear layer of a block; `bias` is the number of its bias elements, `wide` keeps it unquantised."""
        weights = n * k * self.wide_size if wide else self.linear_bytes(n, k)
        return Operator(
            name=name,
            kind="gemm",
            feature="tokens",
            part="layer",
            repeat=repeat,
            power_class="compute",
            gemm_n=n,
            gemm_k=k,
            hidden=self.model.hidden_size,
            weight_dtype=self.wide_dtype if wide else self.weight_dtype,
            weight_bytes=weights + bias * self.wide_size,
            read_bytes_per_token=k * self.wide_size,
            write_bytes_per_token=n * self.wide_size,
            flops_per_token=2 * n * k,
        )

    def elementwise(self, name: str, repeat: int, *, reads: int, writes: int, flops: int, weights: int = 0) -> Operator:
        """An operator of a block that streams; `reads`, `writes` and `weights` in elements."""
        return Operator(
            name=name,
            kind="elementwise",
            feature="tokens",
            part="layer",
            repeat=repeat,
            power_class="memory",
            hidden=self.model.hidden_size,
            weight_dtype=self.wide_dtype if weights else "",
            weight_bytes=weights * self.wide_size,
            read_bytes_per_token=reads * self.wide_size,
            write_bytes_per_token=writes * self.wide_size,
            flops_per_token=flops,
        )

    def all_reduce(self, repeat: int, *, prologue: bool = False) -> list[Operator]:
        """The sum of the ranks' partial hidden states; nothing on a single rank."""
        if self.layout.tp == 1 or repeat == 0:
            return []
        return [
            Operator(
                name="all_reduce",
                kind="collective",
                feature="tokens",
                part="prologue" if prologue else "layer",
                repeat=repeat,
                power_class="link",
                hidden=self.model.hidden_size,
                collective="all_reduce",
                collective_bytes_per_token=self.model.hidden_size * self.wide_size,
            )
        ]

    def embedding(self) -> Operator:
        hidden, size = self.model.hidden_size, self.wide_size
        return Operator(
            name="embedding",
            kind="embedding",
            feature="tokens",
            part="prologue",
            repeat=1,
            power_class="memory",
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=self.shape.vocab * hidden * size,
            read_bytes_per_token=TOKEN_ID_BYTES + hidden * size,
            write_bytes_per_token=hidden * size,
        )

    def attention(self) -> Operator:
        shape, dim = self.shape, self.model.head_dim
        cached = 2 * shape.kv_heads * dim * self.kv_size
        return Operator(
            name="attention",
            kind="attention",
            feature="attention",
            part="layer",
            repeat=self.model.num_layers,
            power_class="compute",
            hidden=self.model.hidden_size,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=dim,
            read_bytes_per_token=shape.qkv_width * self.wide_size,
            write_bytes_per_token=shape.attention_width * self.wide_size + cached,
            kv_bytes_per_context_token=cached,
            flops_per_context_token=4 * shape.heads * dim,
        )

    def experts(self) -> Operator:
        """Expected values: a token's topk choices fall on a rank's experts in proportion to their number."""
        model, shape = self.model, self.shape
        hidden, width, ep = model.hidden_size, shape.moe_intermediate, self.layout.ep
        topk = model.num_experts_per_tok
        per_expert = self.linear_bytes(2 * width, hidden) + self.linear_bytes(hidden, width)
        return Operator(
            name="moe",
            kind="moe",
            feature="tokens",
            part="layer",
            repeat=model.num_moe_layers,
            power_class="compute",
            hidden=hidden,
            experts_total=model.num_experts,
            experts_local=shape.experts,
            topk=topk,
            moe_inter=width,
            weight_dtype=self.weight_dtype,
            weight_bytes=shape.experts * per_expert,
            read_bytes_per_token=-(-topk * (2 * hidden + 3 * width) * self.wide_size // ep),
            write_bytes_per_token=-(-topk * (hidden + 3 * width) * self.wide_size // ep) + hidden * self.wide_size,
            flops_per_token=-(-topk * 6 * hidden * width // ep),
        )

    def lm_head(self) -> Operator:
        vocab, hidden, size = self.shape.vocab, self.model.hidden_size, self.wide_size
        return Operator(
            name="lm_head",
            kind="gemm",
            feature="sequences",
            part="head",
            repeat=1,
            power_class="compute",
            gemm_n=vocab,
            gemm_k=hidden,
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=vocab * (hidden + self.model.lm_head_bias) * size,
            read_bytes_per_token=hidden * size,
            write_bytes_per_token=vocab * size,
            flops_per_token=2 * vocab * hidden,
        )

    def logits_gather(self) -> list[Operator]:
        if self.layout.tp == 1:
            return []
        return [
            Operator(
                name="logits_gather",
                kind="collective",
                feature="sequences",
                part="head",
                repeat=1,
                power_class="link",
                collective="all_gather",
                collective_bytes_per_token=padded_vocab_size(self.model) * self.wide_size,
            )
        ]

    def sampler(self) -> Operator:
        # Greedy: V1 converts the logits to fp32 and takes the argmax; every rank samples the whole vocabulary.
        vocab = self.model.vocab_size
        return Operator(
            name="sampler",
            kind="sampler",
            feature="sequences",
            part="head",
            repeat=1,
            power_class="memory",
            read_bytes_per_token=(self.wide_size + 4) * vocab,
            write_bytes_per_token=4 * vocab,
            flops_per_token=2 * vocab,
        )


def operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[Operator, ...]:
    """What one iteration executes on one rank, in order; the body of identical layers is listed once, with `repeat`.

    A name can occur twice (layernorm, all_reduce). Models that mix dense and MoE layers list both MLPs, each with its
    number of layers. Formulas: module docstring. Raises InputError if the layout does not split the model.
    """
    make = _Builder(model, layout, dtypes)
    shape, layers, hidden = make.shape, model.num_layers, model.hidden_size
    dense_layers = layers - model.num_moe_layers
    rotated = (shape.heads + shape.kv_heads) * model.head_dim
    program = [make.embedding(), *make.all_reduce(1, prologue=True), make.norm("layernorm", "layer", layers)]
    qkv_bias = shape.qkv_width if model.attention_bias else 0
    program.append(make.gemm("qkv_proj", shape.qkv_width, hidden, repeat=layers, bias=qkv_bias))
    if model.qk_norm:
        flops = 4 * rotated
        weights = 2 * model.head_dim
        program.append(make.elementwise("qk_norm", layers, reads=rotated, writes=rotated, flops=flops, weights=weights))
    reads = rotated + model.head_dim
    program.append(make.elementwise("rotary_emb", layers, reads=reads, writes=rotated, flops=3 * rotated))
    program.append(make.attention())
    # Row-parallel layers carry their bias on every rank; only rank 0 adds it.
    o_bias = hidden if model.o_proj_bias else 0
    program.append(make.gemm("o_proj", hidden, shape.attention_width, repeat=layers, bias=o_bias))
    program += [*make.all_reduce(layers), make.norm("layernorm", "layer", layers)]
    if dense_layers:
        program += _dense_mlp(make, dense_layers)
    if model.num_moe_layers:
        gate = make.gemm("moe_gate", model.num_experts, hidden, repeat=model.num_moe_layers, wide=True)
        program += [gate, make.experts(), *make.all_reduce(model.num_moe_layers)]
    program.append(make.norm("final_layernorm", "head", 1))
    program += [make.lm_head(), *make.logits_gather(), make.sampler()]
    return tuple(program)


def _dense_mlp(make: _Builder, repeat: int) -> list[Operator]:
    model, hidden, width = make.model, make.model.hidden_size, make.shape.intermediate
    up_bias, down_bias = (2 * width, hidden) if model.mlp_bias else (0, 0)
    return [
        make.gemm("gate_up_proj", 2 * width, hidden, repeat=repeat, bias=up_bias),
        make.elementwise("act_fn", repeat, reads=2 * width, writes=width, flops=5 * width),
        make.gemm("down_proj", hidden, width, repeat=repeat, bias=down_bias),
        *make.all_reduce(repeat),
    ]
