"""What a layout changes in a rank's operators: context and sequence parallelism, shared FFNs,
pipeline stages.

A pipeline stage sends hidden states and residual on, each tensor-parallel rank its share; the next
stage's ranks gather the shares.
"""

from collections.abc import Callable
from functools import lru_cache, wraps

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Operator, collective
from llmsim.model.parallel.context_parallel import with_context
from llmsim.model.parallel.expert_parallel import with_exchange, without_exchange
from llmsim.model.parallel.sequence_parallel import with_sequence_parallelism
from llmsim.model.types import Dtypes, ModelConfig

Operators = Callable[[ModelConfig, Layout, Dtypes], tuple[Operator, ...]]

STAGE_TENSORS = 2
"""Hidden states and residual, as vLLM's intermediate tensors; or all residual streams."""


def split_layers(num_layers: int, stages: int, together: int = 1) -> tuple[int, ...]:
    """Layers of each stage: equal, what is left over to the stages before the last (vLLM's
    get_pp_indices); so many layers `together` stay in one stage.
    """
    whole = num_layers // together
    layers = [whole // stages] * stages
    for i in range(whole % stages):
        layers[-2 - i] += 1
    return tuple(each * together for each in layers)


@lru_cache(maxsize=64)  # asked for each line of a stage's ledger
def stage_model(model: ModelConfig, layout: Layout) -> ModelConfig:
    """The model with the layers of the layout's stage alone."""
    if layout.pp == 1:
        return model
    first = sum(layout.stage_layers[: layout.stage])
    return model.layers_between(first, first + layout.stage_layers[layout.stage])


def laid_out(whole: Operators) -> Operators:
    """Makes a function that lists the operators of a replica in one stage list those of one rank of
    any layout.
    """

    @lru_cache(maxsize=256)  # the ledger of memory, the costs and the program of one group all ask
    @wraps(whole)
    def operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[Operator, ...]:
        program = whole(stage_model(model, layout), layout, dtypes)
        size = int(dtype_bytes(dtypes.activation))
        if layout.context_ranks > 1:
            program = with_context(program, model, layout, dtypes)
        if layout.dp > 1:
            program = with_exchange(program, model, layout, dtypes)
        if layout.domain == "ffn" and layout.routed_rows:
            program = without_exchange(program)
        if layout.sequence_parallel and layout.tp > 1:
            program = with_sequence_parallelism(program, layout)
        return _one_stage(program, model, layout, size) if layout.pp > 1 else program

    return operators


def _tensors(model: ModelConfig, layout: Layout, stage: int) -> int:
    """Hidden states that a stage gets from the one before it."""
    if model.hyper is not None:
        return model.hyper.streams
    if model.residual_sources:  # the sum so far, and what its first layer attends to
        return 1 + model.residual_sources[sum(layout.stage_layers[:stage])] // 2
    return STAGE_TENSORS


def _one_stage(
    program: tuple[Operator, ...], model: ModelConfig, layout: Layout, size: int
) -> tuple[Operator, ...]:
    last = layout.pp - 1
    if layout.domain == "ffn":
        return program  # hidden states pass from stage to stage on the attention's devices
    kept = [
        op
        for op in program
        if not (op.part == "prologue" and layout.stage > 0)
        and not (op.part == "head" and layout.stage < last)
    ]
    inputs = model.layer_inputs.total_width if model.layer_inputs is not None else 0
    sent = (_tensors(model, layout, layout.stage) * model.hidden_size + inputs) * size
    if layout.stage > 0 and layout.tp > 1 and not layout.sequence_parallel:
        kept.insert(
            0, collective("stage_gather", "all_gather", "tp", sent, part="prologue", repeat=1)
        )
    if layout.stage < last:
        sent = (_tensors(model, layout, layout.stage + 1) * model.hidden_size + inputs) * size
        each = -(-sent // layout.tp)
        kept.append(collective("stage_send", "send", "stages", each, part="head", repeat=1))
    return tuple(kept)
