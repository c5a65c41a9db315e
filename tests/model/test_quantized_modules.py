"""Checkpoints of ModelOpt: files beside the config.json, lists of modules, mixed precision, and
what is refused.
"""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError, NotYetError
from llmsim.model import (
    Layout,
    ModelConfig,
    load_model,
    operators,
    parameter_count,
    resolve_dtypes,
    weight_bytes,
)
from llmsim.model.families.quantization import MODELOPT
from llmsim.model.families.quantized_modules import PARTS, parts_of

LAYERS = 6
QWEN = {
    "model_type": "qwen3_next",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 6400,
    "torch_dtype": "bfloat16",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
}
"""Linear attention in four of six layers, an MLP in the first, experts and shared experts in the
others.
"""
HAVING = {"attention": (2, 5), "attention_out": (2, 5), "linear": (0, 1, 3, 4), "mlp": (0,),
          "shared": (1, 2, 3, 4, 5), "experts": (1, 2, 3, 4, 5)}  # fmt: skip
MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "linear": ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "shared": (
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.down_proj",
    ),
    "experts": ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.7.down_proj"),
}
OPERATORS = {
    "qkv_proj": "attention",
    "o_proj": "attention_out",
    "linear_qkvz_proj": "linear",
    "linear_out_proj": "linear",
    "gate_up_proj": "mlp",
    "down_proj": "mlp",
    "shared_expert_up_proj": "shared",
    "shared_expert_down_proj": "shared",
    "moe": "experts",
}
ALGORITHMS = st.sampled_from(sorted(MODELOPT))


def folder_with(path: Path, quantization: dict[str, Any], prefix: str = "") -> str:
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{prefix}config.json").write_text(json.dumps(QWEN))
    (path / f"{prefix}hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return str(path / f"{prefix}config.json")


def loaded(tmp: pytest.TempPathFactory, quantization: dict[str, Any]) -> ModelConfig:
    return load_model(folder_with(tmp.mktemp("model"), quantization))


def stored(model: ModelConfig) -> dict[str, str]:
    """Part -> the type of its weights, as the operators have them."""
    made = operators(model, Layout(), resolve_dtypes(model))
    found: dict[str, set[str]] = {}
    for op in made:
        if op.name in OPERATORS:
            found.setdefault(OPERATORS[op.name], set()).add(op.weight_dtype)
    assert set(found) == set(PARTS) and all(len(types) == 1 for types in found.values())
    return {part: types.pop() for part, types in found.items()}


def names_of(part: str, layers: tuple[int, ...]) -> list[str]:
    return [f"model.layers.{layer}.{module}" for layer in layers for module in MODULES[part]]


@pytest.mark.parametrize("prefix", ["", "nvidia--GLM-5-NVFP4_", "a.b-"])
def test_the_file_beside_is_read_under_the_prefix_of_its_config(
    tmp_path: Path, prefix: str
) -> None:
    path = folder_with(
        tmp_path, {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}, prefix
    )
    (tmp_path / "other_hf_quant_config.json").write_text("{")
    model = load_model(path)
    assert (model.weight_dtype, model.weight_block, model.kv_cache_dtype) == ("fp4", (1, 16), "fp8")
    wide = Path(path).with_name(f"{prefix}wide_config.json")
    wide.write_text(json.dumps(QWEN))
    assert load_model(str(wide)).weight_dtype == "bf16"


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_excluded_modules_stay_wide_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A part is wide if all layers that have it are excluded; with some of them a note says how it
    is counted.
    """
    algorithm = data.draw(ALGORITHMS)
    excluded = {part: data.draw(st.sets(st.sampled_from(HAVING[part]))) for part in PARTS}
    names = [
        name for part, layers in excluded.items() for name in names_of(part, tuple(sorted(layers)))
    ]
    names += [
        "lm_head",
        "model.layers.1.mlp.gate",
        "model.layers.99.self_attn.q_proj",
        "mtp.layers.0.mlp.up_proj",
    ]
    quantization = {"quant_algo": algorithm, "exclude_modules": data.draw(st.permutations(names))}
    model = loaded(tmp_path_factory, quantization)
    narrow, found = MODELOPT[algorithm].dtype, stored(model)
    for part, layers in excluded.items():
        assert found[part] == ("bf16" if layers == set(HAVING[part]) else narrow), part
        partly = 0 < len(layers) < len(HAVING[part])
        assert any(f"{part} of {len(layers)} layers" in note for note in model.notes) == partly, (
            part
        )


@given(
    st.fixed_dictionaries({part: st.none() | ALGORITHMS for part in PARTS}).filter(
        lambda one: any(one.values())
    )
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_mixed_precision_gives_each_part_its_own_format(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, str | None]
) -> None:
    """What `quantized_layers` leaves out is wide; each part takes the bytes of a checkpoint of its
    format alone.
    """
    listed = {
        name: {"quant_algo": one}
        for part, one in chosen.items()
        if one
        for name in names_of(part, HAVING[part])
    }
    model = loaded(tmp_path_factory, {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed})
    assert stored(model) == {
        part: MODELOPT[one].dtype if one else "bf16" for part, one in chosen.items()
    }
    made = {op.name: op.weight_bytes for op in operators(model, Layout(), resolve_dtypes(model))}
    for one in {one for one in chosen.values() if one}:
        alone = loaded(tmp_path_factory, {"quant_algo": one})
        for op in operators(alone, Layout(), resolve_dtypes(alone)):
            if chosen.get(OPERATORS.get(op.name, "")) == one:
                assert made[op.name] == op.weight_bytes, op.name


def test_two_algorithms_in_one_part_are_refused(tmp_path: Path) -> None:
    listed = {"model.layers.2.self_attn.q_proj": {"quant_algo": "FP8"},
              "model.layers.5.self_attn.q_proj": {"quant_algo": "NVFP4"}}  # fmt: skip
    path = folder_with(tmp_path, {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed})
    with pytest.raises(
        NotYetError, match='modules of "attention" have the algorithms FP8 and NVFP4'
    ):
        load_model(path)


@given(
    st.text(
        st.characters(codec="ascii", categories=("L", "N"), include_characters="_"),
        min_size=1,
        max_size=20,
    )
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_an_unknown_algorithm_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    if name.upper() in (*MODELOPT, "MIXED_PRECISION"):
        return
    for field in (
        {"quant_algo": name},
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.1.mlp.experts": {"quant_algo": name}},
        },
    ):
        with pytest.raises(
            NotYetError, match=rf"(?i)quant_algo\" is '{name}'; of modelopt this version runs FP8, "
        ):
            loaded(tmp_path_factory, field)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (
            {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"},
            "\"kv_cache_quant_algo\" is 'NVFP4'",
        ),
        ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 4}}, '"kv_cache_scheme" is'),
        ({"quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ'"),
        ({"quant_algo": None}, "quant_algo"),
        ({"quant_algo": "MIXED_PRECISION"}, '"quantized_layers" is missing'),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.b": {"quant_algo": "FP8"}}},
            "names no module",
        ),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.b": None}}, '"a.b" is null'),
        ({"quant_algo": "FP8", "exclude_modules": "lm_head"}, '"exclude_modules" is'),
    ],
)
def test_what_is_not_read_is_refused(
    tmp_path: Path, quantization: dict[str, Any], words: str
) -> None:
    with pytest.raises((InputError, NotYetError), match=re.escape(words)):
        load_model(folder_with(tmp_path, quantization))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model.layers.0*", PARTS),
        ("model.layers.1.*", PARTS),
        ("backbone.layers.4.mixer", PARTS),
        ("model.layers.3.self_attn*", ("attention", "attention_out")),
        ("re:.*self_attn.*", ("attention", "attention_out")),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa", ("attention",)),
        ("backbone.layers.5.mixer.o_proj", ("attention_out",)),
        ("backbone.layers.5.mixer.in_proj", ("linear",)),
        ("backbone.layers.5.mixer.conv1d", ()),
        ("backbone.layers.5.mixer.experts.3.up_proj", ("experts",)),
        ("model.layers.3.block_sparse_moe.gate", ()),
        ("*.mlp.shared_expert.*", ("shared",)),
        ("model.layers.3.mlp.shared_expert_gate", ()),
        ("model.layers.3.mlp.gate_proj", ("mlp",)),
        ("model.layers.3.mlp.gate", ()),
        ("lm_head", ()),
        ("mtp*", ()),
        ("model.layers.3.what", None),
    ],
)
def test_a_modules_name_means_parts_of_a_layer(name: str, parts: tuple[str, ...] | None) -> None:
    assert parts_of(name) == parts


def test_a_layer_that_is_left_alone_whole_counts_for_all_its_parts(tmp_path: Path) -> None:
    """The only layer with an MLP is excluded by its number: the MLP is wide. `layers.1*` would be
    1, 10, 11, ...
    """
    model = load_model(
        folder_with(tmp_path, {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0*"]})
    )
    assert model.plain_parts == {"mlp"}
    assert any("linear of 1 layers" in note for note in model.notes)


CARRIED = importlib.util.find_spec("aiconfigurator_core")
BITS = {"NVFP4": (4.4, 7.0), "FP8": (7.9, 8.6)}
"""Bits for each parameter that the name of a checkpoint promises; embeddings, norms and excluded
parts are wide.
"""
MXFP4_BITS = 4.25
"""With a byte of scale for 32 elements: nothing is stored in fewer."""


@pytest.mark.skipif(CARRIED is None, reason="aiconfigurator-core is not installed")
def test_every_carried_config_is_as_large_as_its_name_says_or_refused() -> None:
    assert CARRIED is not None and CARRIED.submodule_search_locations
    folder = Path(CARRIED.submodule_search_locations[0]) / "model_configs"
    configs = sorted(
        path for path in folder.glob("*_config.json") if "quant_config" not in path.name
    )
    read = 0
    for path in configs:
        try:
            model = load_model(str(path))
        except (InputError, NotYetError) as refusal:
            assert str(refusal).count("\n") == 0 and path.name in str(refusal)
            continue
        read += 1
        parameters = parameter_count(model)
        bits = 8 * weight_bytes(model, Layout(), resolve_dtypes(model)) / parameters
        quantised = model.weight_dtype != "bf16"
        promised = next((span for word, span in BITS.items() if word in path.name), None)
        least, most = promised or ((MXFP4_BITS, 8.6) if quantised else (15.9, 16.6))
        if "attention" in model.plain_parts and promised:
            most = 9.0  # Gemma 4 31B: a third of its weights, embeddings included, stays 16 bit
        assert least < bits < most, (path.name, bits)
        billions = re.search(r"[-_](\d+(?:\.\d+)?)B[-_]", path.name)
        if billions and not re.search(
            r"Llama-4|-VL-", path.name
        ):  # active parameters; with an encoder
            assert parameters / 1e9 == pytest.approx(float(billions.group(1)), rel=0.1), path.name
    assert read >= len(configs) * 0.7
