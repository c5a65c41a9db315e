"""What a layout over several replicas or stages changes in a rank's operators: expert traffic, pipeline stages.

Experts that `dp` replicas share (vLLM's allgather_reducescatter): the tokens of all replicas, and their router logits,
are gathered before the experts, a rank computes its experts for all of them, and a reduce-scatter gives each replica
its own tokens back. A pipeline stage sends hidden states and residual on, each tensor-parallel rank its share; the next
stage's ranks gather the shares.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.types import Dtypes, Layout, ModelConfig, Operator

Operators = Callable[[ModelConfig, Layout, Dtypes], tuple[Operator, ...]]

STAGE_TENSORS = 2
"""Hidden states and residual, as vLLM's intermediate tensors."""


def split_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: equal, what is left over to the stages before the last (vLLM's get_pp_indices)."""
    layers = [num_layers // stages] * stages
    for i in range(num_layers % stages):
        layers[-2 - i] += 1
    return tuple(layers)


def stage_model(model: ModelConfig, layout: Layout) -> ModelConfig:
    """The model with the layers of the layout's stage alone."""
    if layout.pp == 1:
        return model
    first = sum(layout.stage_layers[: layout.stage])
    last = first + layout.stage_layers[layout.stage]
    per_layer: dict[str, Any] = {
        name: value[first:last]
        for name, value in vars(model).items()
        if isinstance(value, tuple) and len(value) == model.num_layers and name != "notes"
    }
    return replace(model, num_layers=last - first, **per_layer)


def laid_out(whole: Operators) -> Operators:
    """Makes a function that lists the operators of a replica in one stage list those of one rank of any layout."""

    @wraps(whole)
    def operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[Operator, ...]:
        program = whole(stage_model(model, layout), layout, dtypes)
        size = int(dtype_bytes(dtypes.activation))
        if layout.dp > 1:
            program = _with_expert_traffic(program, model, size)
        return _one_stage(program, model, layout, size) if layout.pp > 1 else program

    return operators


def _with_expert_traffic(program: tuple[Operator, ...], model: ModelConfig, size: int) -> tuple[Operator, ...]:
    hidden, out = model.hidden_size, []
    for op in program:
        if op.kind != "moe":
            out.append(op)
            continue
        out.append(_traffic("dispatch", "all_gather", op, (hidden + model.num_experts) * size))
        out.append(replace(op, feature="gathered"))
        out.append(_traffic("combine", "reduce_scatter", op, hidden * size))
    return tuple(out)


def _traffic(name: str, collective: str, experts: Operator, size: int) -> Operator:
    return Operator(
        name=name,
        kind="collective",
        feature="gathered",
        part=experts.part,
        repeat=experts.repeat,
        power_class="link",
        hidden=experts.hidden,
        collective=collective,  # type: ignore[arg-type]
        collective_bytes_per_token=size,
    )


def _one_stage(program: tuple[Operator, ...], model: ModelConfig, layout: Layout, size: int) -> tuple[Operator, ...]:
    last = layout.pp - 1
    kept = [
        op
        for op in program
        if not (op.part == "prologue" and layout.stage > 0) and not (op.part == "head" and layout.stage < last)
    ]
    sent = STAGE_TENSORS * model.hidden_size * size
    if layout.stage > 0 and layout.tp > 1:
        kept.insert(0, _between_stages("stage_gather", "all_gather", "prologue", sent))
    if layout.stage < last:
        kept.append(_between_stages("stage_send", "send", "head", -(-sent // layout.tp)))
    return tuple(kept)


def _between_stages(name: str, collective: str, part: str, size: int) -> Operator:
    return Operator(
        name=name,
        kind="collective",
        feature="tokens",
        part=part,  # type: ignore[arg-type]
        repeat=1,
        power_class="link",
        collective=collective,  # type: ignore[arg-type]
        collective_bytes_per_token=size,
    )
