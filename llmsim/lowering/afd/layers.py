"""The layers of a model as the two sides run them: which operators of which program, in order."""

from collections.abc import Sequence

from msgspec import Struct

from llmsim import _native
from llmsim.lowering.program import Placed
from llmsim.model import Attention, Layout, ModelConfig, Moe, Operator
from llmsim.model.parallel.transforms import stage_model

LONGEST_PERIOD = 12
"""Layers after which a model may repeat itself."""

Layer = tuple[str, bool]
"""What a layer attends to, and whether its FFN is a mixture of experts."""


class Run(Struct, frozen=True):
    """Layers that follow each other, so many times."""

    layers: tuple[Layer, ...]
    repeat: int


def layers_of(model: ModelConfig) -> tuple[Layer, ...]:
    """The layers of a model, or of the layers of one stage."""
    kinds = model.layer_kinds or ("full",) * model.num_layers
    return tuple(zip(kinds, model.moe_layers, strict=True))


def runs_of(layers: Sequence[Layer]) -> list[Run]:
    """The layers in as few runs as periods up to LONGEST_PERIOD give, taken greedily."""
    runs = []
    at = 0
    while at < len(layers):
        period = max(
            range(1, min(LONGEST_PERIOD, len(layers) - at) + 1),
            key=lambda size: (_covered(layers, at, size), -size),
        )
        covered = _covered(layers, at, period)
        runs.append(Run(tuple(layers[at : at + period]), covered // period))
        at += covered
    return runs


def _covered(layers: Sequence[Layer], at: int, period: int) -> int:
    """Layers from `at` on that repeat the first `period`; those alone do not count as repeated."""
    times = 1
    pattern = layers[at : at + period]
    while layers[at + times * period : at + (times + 1) * period] == pattern:
        times += 1
    return times * period if times > 1 or period == 1 else 0


def native_bands(
    model: ModelConfig, layout: Layout, attention: Sequence[Placed], ffn: Sequence[Placed]
) -> "list[_native.AfdBand]":
    """The bands of all stages. A dense layer moves hop 0, a mixture of experts hop 1."""
    bands = []
    for stage in range(layout.pp):
        stage_layout = Layout(stage_layers=layout.stage_layers, stage=stage)
        layers = layers_of(stage_model(model, stage_layout))
        for run in runs_of(layers):
            native = [
                _native.AfdLayer(
                    _attention_operators(attention, stage, layer),
                    _ffn_operators(ffn, stage, layer, layers),
                    int(layer[1]),
                )
                for layer in run.layers
            ]
            bands.append(_native.AfdBand(stage, run.repeat, native))
    return bands


def _attention_operators(placed: Sequence[Placed], stage: int, layer: Layer) -> list[int]:
    return [
        index
        for index, one in enumerate(placed)
        if one.stage == stage and one.part == "layer" and _attends(one.operator, layer)
    ]


def _attends(op: Operator | None, layer: Layer) -> bool:
    """Whether a layer runs an operator of the attention's; None: a cost of the source as a whole,
    which every layer has.
    """
    if isinstance(op, Attention) and op.block == "attention":
        return op.sees == layer[0]
    if op is not None and op.block == "router":
        return layer[1]
    return True


def _ffn_operators(
    placed: Sequence[Placed], stage: int, layer: Layer, layers: Sequence[Layer]
) -> list[int]:
    """Operators of dense layers come before those of experts; norms behind them are of all."""
    here = [
        (index, one)
        for index, one in enumerate(placed)
        if one.stage == stage and one.part == "layer"
    ]
    found, experts = [], not any(not moe for _, moe in layers)
    for index, one in here:
        op = one.operator
        experts |= isinstance(op, Moe) or (op is not None and _before_experts(op))
        if one.repeat == len(layers) or experts == layer[1]:
            found.append(index)
    return found


def _before_experts(op: Operator) -> bool:
    return op.block == "router" or op.name == "dispatch"
