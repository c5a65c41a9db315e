"""The operators of embeddings that every layer gets (Gemma 3n and 4; shapes: vLLM's gemma4.py).

In front of the layers: rows of a second table, cut over ranks by its rows like the first; one
projection of the embedding for all layers, cut by its columns and gathered; its norm and the sum of
both. Behind each layer, whole on every rank: a gate down to the embedding's width, an activation
times the embedding, a projection back, and its norm.
"""

from msgspec.structs import replace

from llmsim.model.operator import Embedding, Operator, collective
from llmsim.model.operators.factory import TOKEN_ID_BYTES, OperatorFactory
from llmsim.model.parallel.sharding import padded_rows


def embeddings_of_layers(make: OperatorFactory) -> list[Operator]:
    """What runs once, in front of all layers; nothing where the model has none."""
    inputs, hidden, size = make.model.layer_inputs, make.model.hidden_size, make.wide_size
    if inputs is None:
        return []
    tp, width = make.layout.tp, inputs.total_width
    table = Embedding(
        name="layer_embedding",
        part="prologue",
        repeat=1,
        hidden=hidden,
        weight_dtype=make.wide_dtype,
        weight_bytes=padded_rows(inputs.rows) // tp * width * size,
        read_bytes_per_token=TOKEN_ID_BYTES + width * size,
        write_bytes_per_token=width * size,
        flops_per_token=width,
    )
    program: list[Operator] = [table]
    if tp > 1:
        add = collective(
            "layer_embedding_sum", "all_reduce", "tp", width * size, part="prologue", repeat=1
        )
        program.append(add)
    projection = make.gemm(
        "layer_inputs_proj", width // tp, hidden, part="mlp", repeat=1, cut="columns"
    )
    program.append(replace(projection, part="prologue"))
    if tp > 1:
        gather = collective(
            "layer_inputs_gather", "all_gather", "tp", width * size, part="prologue", repeat=1
        )
        program.append(gather)
    norm = make.elementwise(
        "layer_inputs_norm",
        1,
        reads=2 * width,
        writes=width,
        flops=6 * width,
        weights=inputs.width,
        reduces=True,
        kernels=2,
    )
    return [*program, replace(norm, part="prologue")]


def mixed_into_layers(make: OperatorFactory) -> list[Operator]:
    """What runs behind each layer; nothing where the model has no such embeddings."""
    inputs, hidden, layers = make.model.layer_inputs, make.model.hidden_size, make.model.num_layers
    if inputs is None:
        return []
    width = inputs.width
    return [
        make.gemm("layer_input_gate", width, hidden, part="mlp", repeat=layers),
        make.elementwise("layer_input_act", layers, reads=2 * width, writes=width, flops=5 * width),
        make.gemm("layer_input_proj", hidden, width, part="mlp", repeat=layers),
        make.post_norm(layers),
    ]
