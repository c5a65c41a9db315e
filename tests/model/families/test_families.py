"""Architecture descriptions: every bundled one reads, a new one is one file, and what is not
described is refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError, NotYetError
from llmsim.model import (
    Dtypes,
    Layout,
    ModelConfig,
    family_types,
    load_model,
    operators,
    parameter_count,
    state_bytes_per_sequence,
    weight_bytes,
)
from llmsim.model.families.family import FAMILIES_DIR, load_family
from llmsim.model.families.hf_config import parse_config
from tests.model.fp32 import in_fp32

BASE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 6400,
    "torch_dtype": "bfloat16",
    "multi_query": False,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256, "n_shared_experts": 1, "shared_expert_intermediate_size": 128,
    "moe_num_experts": 8, "moe_k": 2, "moe_topk": 2,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}
LINEAR = {
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 64,
    "full_attention_interval": 4,
    "linear_head_dim": 32,
    "linear_num_heads": 4,
}
STATE_SPACE: dict[str, Any] = {
    "mamba_n_groups": 4,
    "mamba_d_state": 32,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "attn_layer_indices": [3, 7],
    "n_groups": 4,
    "ssm_state_size": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
}
SPARSE = {"index_n_heads": 4, "index_head_dim": 32, "index_topk": 64}
FACTORISED = {
    "num_attention_groups": 1,
    "share_q_dim": 32,
    "moe_num_experts": 8,
    "moe_top_k": 2,
    "share_expert_dim": 128,
    "moe_layers_enum": [2, 3, 4, 5, 6],
}
COMPRESSED: dict[str, Any] = {
    **SPARSE,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 16,
    "o_groups": 4,
    "o_lora_rank": 32,
    "hc_mult": 4,
    "num_hash_layers": 3,
    "sliding_window": 128,
    "compress_ratios": [0, 128, 4, 128, 4, 128, 4, 128],
}
BLOCKS: dict[str, Any] = {
    "dense_intermediate_size": 1024,
    "shared_intermediate_size": 256,
    "moe_layer_freq": [0] * 2 + [1] * 6,
    "sparse_attention_config": {
        "sparse_attention_freq": [0] * 2 + [1] * 6,
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 32,
        "sparse_topk_blocks": 4,
        "sparse_block_size": 32,
    },
}
MAMBA: dict[str, Any] = {"state_size": 16, "time_step_rank": 16}
LAYERS: dict[str, Any] = {
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": {"num_heads": 16, "state_size": 32, "n_groups": 4},
    "hy_v4": {"hc_mult": 4},
    "minimax_m3": BLOCKS,
    "minimax_m3_vl": BLOCKS,
    "minimax_m3_vl_text": BLOCKS,
    "deepseek_v4": COMPRESSED,
    "deepseek_ref": COMPRESSED,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "longcat_flash": {"zero_expert_num": 4},
    "jamba": {"mamba_dt_rank": 16},
    "step3": FACTORISED,
    "step3_text": FACTORISED,
    "nemotron_h": {"hybrid_override_pattern": "M*-EM-*E"},
    "granitemoehybrid": {
        "layer_types": ["mamba", "mamba", "attention", "mamba"] * 2,
        "shared_intermediate_size": 128,
    },
}


def of_type(model_type: str, **changes: Any) -> ModelConfig:
    """A small model of a family, with the fields that its description speaks of."""
    family = next(
        load_family(path)
        for path in FAMILIES_DIR.glob("*.json")
        if model_type in load_family(path).model_types
    )
    fields = {"model_type": model_type, **BASE}
    if family.experts is not None:
        shared = family.experts.shared_width != 0
        fields.update({k: v for k, v in EXPERTS.items() if shared or "shared" not in k})
    fields.update(LATENT if family.latent is not None else {})
    if family.linear is not None:
        fields.update(STATE_SPACE if family.linear.kind == "state_space" else LINEAR)
    fields.update(SPARSE if family.indexer is not None else {})
    fields.update(LAYERS.get(model_type, {}))
    return parse_config({**fields, **changes}, name="m", source="config.json")


@pytest.mark.parametrize("model_type", family_types())
def test_every_family_counts_the_same_twice(model_type: str) -> None:
    # Independent sums: the closed form, and the weights of the operators.
    model = of_type(model_type)
    assert model.family.startswith("llmsim/presets/families/")
    tied = model.tie_word_embeddings
    assert weight_bytes(model, Layout(), Dtypes()) == 2 * (parameter_count(model) + in_fp32(model))
    assert parameter_count(of_type(model_type, tie_word_embeddings=not tied)) - parameter_count(
        model
    ) == (BASE["vocab_size"] * BASE["hidden_size"] * (1 if tied else -1))


@pytest.mark.parametrize("model_type", family_types())
def test_ranks_share_the_linear_work(model_type: str) -> None:
    # Flops of the sharded operators add up over the ranks; what every rank repeats is named.
    model = of_type(model_type)
    repeated = {"moe_gate", "shared_expert_gate", "qkv_a_proj", "kv_a_proj"}
    repeated |= {"linear_gates_a_proj"}
    repeated |= {"indexer_q_proj", "indexer_k_proj", "moe_latent_in", "moe_latent_out"}
    repeated |= {"moe_gate_hashed", "pool_compressed", "pool_compressed_sparse"}
    repeated |= {"indexer_weights_proj"}
    repeated |= {"qkv_proj_block_sparse"}  # the indexer's key is on every rank

    def flops(tp: int) -> int:
        program = [op for op in operators(model, Layout(tp), Dtypes()) if op.name not in repeated]
        return sum(op.flops_per_token * op.repeat for op in program if op.kind in ("gemm", "moe"))

    alone, on_two = flops(1), flops(2)
    assert alone == 2 * on_two


def test_layers_by_rule() -> None:
    gemma = of_type("gemma3_text", sliding_window=512)
    assert gemma.layer_kinds == ("sliding",) * 5 + ("full",) + ("sliding",) * 2
    assert (gemma.window, gemma.layers_of("full"), gemma.layers_of("sliding")) == (512, 1, 7)
    assert of_type("gemma3_text", sliding_window=4096).layer_kinds == ()  # as wide as the context
    listed = ["sliding_attention", "full_attention"] * 4
    assert (
        of_type("gemma3_text", sliding_window=512, layer_types=listed).layer_kinds
        == ("sliding", "full") * 4
    )
    qwen = of_type("qwen2", sliding_window=512, use_sliding_window=True, max_window_layers=6)
    assert qwen.layer_kinds == ("full",) * 6 + ("sliding",) * 2
    llama = of_type("llama4_text", attention_chunk_size=1024, no_rope_layers=[1, 0] * 4)
    assert llama.layer_kinds == ("chunked", "full") * 4
    assert of_type("qwen3_next").layer_kinds == (("linear",) * 3 + ("full",)) * 2
    assert of_type("mistral", sliding_window=1024).layer_kinds == ("sliding",) * 8


def test_sparse_layers_by_rule() -> None:
    assert of_type("deepseek_v3", first_k_dense_replace=3).moe_layers == (False,) * 3 + (True,) * 5
    assert of_type("deepseek_v3", moe_layer_freq=2).moe_layers == (True, False) * 4
    assert of_type("llama4_text", interleave_moe_layer_step=2).moe_layers == (False, True) * 4
    assert of_type("llama4_text", moe_layers=[0, 7]).moe_layers == (True,) + (False,) * 6 + (True,)


def test_shared_experts_are_operators_of_their_own() -> None:
    names = [op.name for op in operators(of_type("qwen2_moe"), Layout(), Dtypes())]
    start = names.index("moe")
    assert names[start + 1 : start + 5] == [
        "shared_expert_up_proj",
        "shared_expert_act_fn",
        "shared_expert_down_proj",
        "shared_expert_gate",
    ]


def test_wrappers_are_read_through() -> None:
    text = {"model_type": "llama", **{k: v for k, v in BASE.items() if k != "torch_dtype"}}
    outer = {
        "model_type": "llava",
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        "torch_dtype": "float16",
    }
    model = parse_config(outer, name="m", source="config.json")
    assert (model.model_type, model.dtype) == ("llama", "fp16")
    assert "encoders" in model.notes[0]


def test_an_unknown_family_says_what_to_do() -> None:
    with pytest.raises(NotYetError) as error:
        parse_config({"model_type": "zebra", **BASE, **LATENT}, name="m", source="config.json")
    text = str(error.value)
    assert "\"model_type\" is 'zebra'" in text
    assert "family.json" in text
    assert 'look like "deepseek_v3"' in text
    with pytest.raises(NotYetError, match='did you mean "qwen3_moe"'):
        parse_config({"model_type": "qwen3-moe", **BASE}, name="m", source="config.json")


ZEBRA = {
    "model_types": ["zebra"],
    "source": "a test",
    "qkv_bias": True,
    "norms_per_layer": 4,
    "layers": {"every": 4, "kind": "full", "rest": "sliding", "window": "attention_span"},
    "experts": {
        "experts": "n_exp",
        "topk": "k_exp",
        "width": ["exp_width", "intermediate_size"],
        "first": 2,
    },
}


def write_zebra(folder: Path, **changes: Any) -> Path:
    fields = {"model_type": "zebra", **BASE, "attention_span": 256, "n_exp": 4, "k_exp": 1}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "family.json").write_text(json.dumps({**ZEBRA, **changes}))
    return folder


def test_a_new_family_is_one_file(tmp_path: Path) -> None:
    model = load_model(str(write_zebra(tmp_path)))
    assert model.layer_kinds == (("sliding",) * 3 + ("full",)) * 2
    assert (model.num_experts, model.num_moe_layers, model.window, model.norms_per_layer) == (
        4,
        6,
        256,
        4,
    )
    hidden, qkv = 512, (8 + 4) * 64
    attention = qkv * (hidden + 1) + hidden * 8 * 64
    layers = (
        8 * (attention + 4 * hidden) + 2 * 3 * hidden * 1024 + 6 * 4 * (hidden + 3 * hidden * 1024)
    )
    assert parameter_count(model) == 2 * 6400 * hidden + layers + hidden
    assert weight_bytes(model, Layout(), Dtypes()) == 2 * parameter_count(model)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"norms": 4}, "norms"),
        ({"layers": {"every": 4, "kind": "whole"}}, r"\$\.layers\.kind"),
        ({"experts": {"topk": 1, "width": 2}}, "experts"),
        ({"model_types": ["giraffe"]}, "add it"),
        ({"experts": {"experts": "no_such", "topk": 1, "width": 64}}, '"no_such" is missing'),
        ({"layers": {"rest": "linear"}}, '"linear" does not say'),
    ],
)
def test_a_wrong_description_is_named(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError, match=expected) as error:
        load_model(str(write_zebra(tmp_path, **changes)))
    assert str(tmp_path) in str(error.value)


QUANTISED = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", (128, 128), 32)),
    ({"quant_method": "fbgemm_fp8"}, ("fp8", None, 32)),
    ({"quant_method": "mxfp4"}, ("fp4", (1, 32), 8)),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, ("fp4", (1, 16), 8)),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, ("int4", (1, 64), 20)),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
        },
        ("int8", None, 16),
    ),
]


@pytest.mark.parametrize(("config", "expected"), QUANTISED)
def test_quantised_checkpoints(config: dict[str, Any], expected: tuple[object, ...]) -> None:
    model = of_type("llama", quantization_config=config)
    assert (model.weight_dtype, model.weight_block, model.scale_bits) == expected


def test_parts_that_a_checkpoint_leaves_alone() -> None:
    config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    model = of_type("gpt_oss", quantization_config=config)
    dtypes = {op.name: op.weight_dtype for op in operators(model, Layout(), Dtypes(weight="fp4"))}
    assert (dtypes["qkv_proj"], dtypes["moe"], dtypes["moe_gate"]) == ("bf16", "fp4", "bf16")
    listed = {
        "quant_method": "fp8",
        "modules_to_not_convert": [f"model.layers.{i}.self_attn.q_proj" for i in range(8)],
    }
    assert of_type("llama", quantization_config=listed).plain_parts == {"attention"}
    some = {
        "quant_method": "fp8",
        "ignore": ["model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate"],
    }
    partly = of_type("llama", quantization_config=some)
    assert partly.plain_parts == frozenset()
    assert "mlp of 1 layers" in partly.notes[0]


def test_fp8_cache_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **BASE}))
    quantization = {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    model = load_model(str(tmp_path))
    assert (model.weight_dtype, model.kv_cache_dtype) == ("fp8", "fp8")


def test_the_family_in_the_documents_is_the_one_tested_here() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "models.md").read_text()
    described = json.loads(text.split("```json\n")[1].split("```")[0])
    assert {**described, "source": "a test"} == ZEBRA


def test_a_rule_may_depend_on_a_flag_and_scale_a_field(tmp_path: Path) -> None:
    rules = {
        "kv_heads": [{"grouped": ["groups", 4]}, {"multi": 1}, "num_attention_heads"],
        "intermediate": "4 * hidden_size",
    }
    described = {
        "model_types": ["zebra"],
        "source": "here",
        "renamed": {"hidden_size": "width"},
        **rules,
    }
    (tmp_path / "family.json").write_text(json.dumps(described))

    def kv_heads(**more: Any) -> int:
        fields = {k: v for k, v in BASE.items() if k not in ("hidden_size", "num_key_value_heads")}
        config = {"model_type": "zebra", "width": 512, **fields, **more}
        model = parse_config(config, name="m", source="config.json", folder=tmp_path)
        assert (model.hidden_size, model.intermediate_size) == (512, 2048)
        return model.num_key_value_heads

    assert [
        kv_heads(),
        kv_heads(multi=True),
        kv_heads(grouped=True),
        kv_heads(grouped=True, groups=2),
    ] == [8, 1, 4, 2]
    with pytest.raises(InputError, match='field "multi" is 3; it must be true or false'):
        kv_heads(multi=3)


def test_parallel_layers_share_a_norm_and_maybe_a_sum() -> None:
    falcon, command = of_type("falcon"), of_type("cohere")
    names = {
        model.name + model.model_type: [op.name for op in operators(model, Layout(2), Dtypes())]
        for model in (falcon, command)
    }
    assert [one.count("layernorm") for one in names.values()] == [1, 1]
    # One sum of the ranks for each layer, or one behind attention and one behind the MLP; and that
    # of the embedding.
    assert [one.count("all_reduce") for one in names.values()] == [2, 3]
    assert (
        names["mfalcon"].index("branch_add")
        < len(names["mfalcon"]) - names["mfalcon"][::-1].index("all_reduce") - 1
    )
    assert (command.norm_bias, falcon.norm_bias) == (False, True)


def test_lightning_attention_has_no_convolution_and_no_gates() -> None:
    model = of_type("minimax_m1", attn_type_list=[0] * 7 + [1])
    names = [op.name for op in operators(model, Layout(), Dtypes())]
    assert "linear_attention" in names and not {"linear_conv", "linear_ba_proj"} & set(names)
    assert (
        state_bytes_per_sequence(model, Layout(2), Dtypes()) == 7 * 4 * 64 * 64 * 2
    )  # half of eight heads
    assert (model.layers_of("linear"), model.layers_of("full")) == (7, 1)


def test_tokens_may_choose_groups_of_experts_first() -> None:
    assert [
        getattr(load_model("deepseek-ai/DeepSeek-V3"), name)
        for name in ("expert_groups", "groups_per_token")
    ] == [
        8,
        4,
    ]
    model = of_type("deepseek_v3", n_group=4, topk_group=2)
    moe = next(op for op in operators(model, Layout(), Dtypes()) if op.kind == "moe")
    assert moe.expert_groups == (4, 2)
    for groups, chosen in ((3, 1), (4, 5), (8, 1)):
        with pytest.raises(InputError, match="a token's 2 experts come from"):
            of_type("deepseek_v3", n_group=groups, topk_group=chosen)
