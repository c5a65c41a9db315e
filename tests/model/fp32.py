"""Weights that engines keep in fp32 beside 16-bit ones, counted apart from the operators."""

from llmsim.model import ModelConfig


def in_fp32(model: ModelConfig) -> int:
    """Weights of residual streams; positions and sinks of attention to a compressed context."""
    found = (
        0 if model.hyper is None else model.hyper.parameters(model.hidden_size, model.num_layers)
    )
    if model.compressed is None or model.indexer is None:
        return found
    sparse, heavy = (len(model.layers_with(kind)) for kind in ("compressed_sparse", "compressed"))
    row = model.compressed.dim
    found += model.num_layers * model.num_attention_heads
    return found + sparse * 4 * 2 * (row + model.indexer.dim) + heavy * 128 * row
