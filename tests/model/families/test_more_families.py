"""Families without a bundled preset: published configs, as their authors wrote them, give the
published counts.
"""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmsim.config.errors import LlmsimError
from llmsim.lowering.parallel_layout import stages_of
from llmsim.model import (
    Dtypes,
    Layout,
    layout_problem,
    load_model,
    operators,
    parameter_count,
    weight_bytes,
)
from llmsim.model.parallel.transforms import split_layers
from tests.model.families.configs import MTP, PUBLISHED, Config, shape


def write(folder: Path, config: Config) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(tmp_path: Path, name: str) -> None:
    published, _, config = PUBLISHED[name]
    assert parameter_count(load_model(write(tmp_path, config))) == pytest.approx(
        published, rel=0.005
    )


@pytest.mark.parametrize("name", MTP)
def test_counts_with_the_prediction_layer_are_the_published_ones(tmp_path: Path, name: str) -> None:
    published, config = MTP[name]
    model = load_model(write(tmp_path, config))
    hidden, experts, width = model.hidden_size, model.num_experts, model.moe_intermediate_size
    qkv = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    attention = (hidden + 1) * qkv + model.num_attention_heads * model.head_dim * hidden
    # A sparse layer, a projection of two hidden states, five norms, and embedding and head of its
    # own.
    layer = attention + (experts + 1) * 3 * hidden * width + experts * (hidden + 1)
    extra = layer + 2 * hidden * hidden + 5 * hidden + 2 * model.vocab_size * hidden
    assert parameter_count(model) + extra == pytest.approx(published, rel=1e-6)


LAYOUTS = (Layout(), Layout(2), Layout(2, stage_layers=(0, 0)), Layout(4))


@pytest.mark.parametrize("name", {**PUBLISHED, **MTP})
def test_layouts_hold_the_whole_model(tmp_path: Path, name: str) -> None:
    """Ranks and stages hold all weights between them: what is cut exactly, what every rank repeats
    at least once.
    """
    model = load_model(
        write(tmp_path, {**PUBLISHED, **{key: ("", "", MTP[key][1]) for key in MTP}}[name][2])
    )
    whole = weight_bytes(model, Layout(), Dtypes())
    held = []
    for layout in LAYOUTS:
        if layout.stage_layers:
            layout = replace(layout, stage_layers=split_layers(model.num_layers, 2))
        if layout_problem(model, layout):
            continue
        of_stages = [weight_bytes(model, stage, Dtypes()) for stage in stages_of(layout)]
        held.append(layout)
        assert (
            whole
            <= layout.tp * sum(of_stages)
            <= 1.2 * whole + 2 * layout.tp * model.vocab_size * model.hidden_size
        )
        assert all(op.flops_per_token >= 0 for op in operators(model, layout, Dtypes()))
    assert len(held) >= 1 + (model.num_attention_heads % 2 == 0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (shape(48, 7168, 8192, 56, 8, 100352, model_type="zebra"), "zebra"),
        (
            shape(64, 6400, 18304, 80, 8, 129024, model_type="hunyuan", use_cla=True),
            "keys and values that layers share",
        ),
        (
            shape(24, 1024, 4096, 16, 16, 50272, model_type="opt", word_embed_proj_dim=512),
            '"word_embed_proj_dim" is 512',
        ),
        (
            shape(
                2, 512, 512, 8, 8, 1024, model_type="hunyuan_v1_moe", num_experts=4, moe_topk=[1, 2]
            ),
            "layers of different shapes",
        ),
        (
            shape(61, 7168, 18432, 128, 128, 129280, model_type="llama", index_topk=2048),
            "sparse attention",
        ),
        (
            shape(56, 4480, 15680, 40, 8, 131072, model_type="llama", ssm_state_size=128),
            "state-space",
        ),
        (
            shape(56, 4480, 15680, 40, 8, 131072, model_type="nemotron_h"),
            "what each of 56 layers is",
        ),
        (
            shape(32, 4096, 14336, 32, 8, 65536, model_type="llama", attn_layer_period=8),
            "state-space",
        ),
    ],
)
def test_others_are_refused_by_what_is_missing(tmp_path: Path, config: Config, words: str) -> None:
    with pytest.raises(LlmsimError, match=words):
        load_model(write(tmp_path, config))
