"""Every operator inside of layers knows which of them run it, in every layout: KV and states leave,
and weights arrive, layer by layer.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from package import PRESETS

from llmsim.config.errors import InputError, NotYetError
from llmsim.model import (
    Attention,
    Dtypes,
    Layout,
    ModelConfig,
    Moe,
    Operator,
    StateSpace,
    family_types,
    load_model,
    operators,
)
from llmsim.model.families.hf_config import parse_config
from llmsim.model.parallel.transforms import split_layers

FOLDER = PRESETS / "models"
PRESETS = sorted(str(one.relative_to(FOLDER).with_suffix("")) for one in FOLDER.rglob("*.json"))
LAYOUTS = {
    "one rank": Layout(),
    "sequence parallel": Layout(2, sequence_parallel=True),
    "lock-step": Layout(2, ep=4, dp=2),
    "shared FFNs": Layout(2, ep=4, dp=2, shared_ffn=True),
    "context": Layout(2, prefill_context=2),
    "attention alone": Layout(2, ep=4, dp=2, domain="attention"),
    "FFN alone": Layout(2, ep=4, dp=2, domain="ffn", routed_rows=True),
}


def described() -> Iterator[tuple[str, ModelConfig]]:
    """Models of each type, as transformers writes their default configs."""
    text = (Path(__file__).parent / "families" / "transformers_counts.json").read_text(
        encoding="utf-8"
    )
    for name, rows in json.loads(text)["models"].items():
        for found in rows if name in family_types() else ():
            try:
                yield name, parse_config(found["config"], name=name, source="config.json")
            except (InputError, NotYetError):
                continue


def layers_of(op: Operator, model: ModelConfig) -> tuple[int, ...]:
    return op.in_layers or tuple(range(model.num_layers))


def check(model: ModelConfig, layout: Layout, stage: ModelConfig) -> None:
    kinds = stage.layer_kinds or ("full",) * stage.num_layers
    for op in operators(model, layout, Dtypes()):
        if op.part != "layer":
            assert not op.in_layers and op.repeat == 1
            continue
        numbers = layers_of(op, stage)
        assert len(numbers) == op.repeat, op.name
        assert list(numbers) == sorted(set(numbers)) and numbers[-1] < stage.num_layers
        if isinstance(op, StateSpace):
            assert {kinds[one] for one in numbers} <= {"linear", "both"}, op.name
        if isinstance(op, Attention) and op.block == "attention":
            assert {kinds[one] for one in numbers} <= {op.sees, "both"}, op.name
        if isinstance(op, Moe):
            assert all(stage.moe_layers[one] for one in numbers)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRESETS)
def test_operators_of_presets(name: str, layout: str) -> None:
    model = load_model(name)
    try:
        check(model, LAYOUTS[layout], model)
    except (InputError, NotYetError):
        pytest.skip("the layout does not split the model")


@pytest.mark.parametrize("name", PRESETS)
def test_operators_of_stages(name: str) -> None:
    model = load_model(name)
    layers = split_layers(model.num_layers, 2)
    for stage in range(2):
        first = layers[0] * stage
        cut = model.layers_between(first, first + layers[stage])
        check(model, replace(Layout(), stage_layers=layers, stage=stage), cut)


def test_operators_of_described_types() -> None:
    models = list(described())
    assert len(models) > 100
    for _, model in models:
        check(model, Layout(), model)
