"""The projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) on one rank.

Hidden -> (q_rank, kv_rank + rope_dim), the same on every rank; norms; q_rank -> the rank's query heads; kv_rank -> the
rank's keys and values. vLLM computes decodes on the compressed cache: W_UK is applied to the queries and W_UV to the
outputs, which for one token is as many flops, and the same weights, as kv_b_proj on it: one operator stands for both.
"""

from llmsim.model.builder import Builder
from llmsim.model.rank import Operator


def latent_projections(make: Builder) -> list[Operator]:
    """Everything before the attention kernel."""
    model, shape, repeat = make.model, make.shape, make.model.num_layers
    latent = model.latent
    assert latent is not None, "the caller checks"
    hidden, query = model.hidden_size, shape.heads * model.head_dim
    down = latent.q_rank + latent.cached_width
    bias = down if model.attention_bias else 0
    first = "qkv_a_proj" if latent.q_rank else "kv_a_proj"
    program = [make.gemm(first, down, hidden, part="attention", repeat=repeat, bias=bias)]
    normed = latent.q_rank + latent.kv_rank
    program.append(
        make.elementwise("latent_norm", repeat, reads=normed, writes=normed, flops=4 * normed, weights=normed)
    )
    if latent.q_rank:
        program.append(make.gemm("q_b_proj", query, latent.q_rank, part="attention", repeat=repeat))
    else:
        program.append(make.gemm("q_proj", query, hidden, part="attention", repeat=repeat))
    wide = shape.heads * (latent.nope_dim + latent.v_dim)
    program.append(make.gemm("kv_b_proj", wide, latent.kv_rank, part="attention", repeat=repeat))
    rotated = (shape.heads + 1) * latent.rope_dim
    reads = rotated + latent.rope_dim
    program.append(make.elementwise("rotary_emb", repeat, reads=reads, writes=rotated, flops=3 * rotated))
    return program
