"""Reading config.json files: presets, paths, every family, and one sentence for everything that is
wrong.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.errors import InputError, LlmsimError, NotYetError
from llmsim.model import load_model, model_names, parameter_count, resolve_dtypes
from llmsim.model.families.hf_config import parse_config
from tests.shared_data import shared

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 6,
}


def parse(**changes: Any) -> Any:
    return parse_config({**LLAMA, **changes}, name="m", source="config.json")


def test_phi_mini_moe_has_its_published_size() -> None:
    # Published with one decimal, 7.6B; the exact count is checked by hand: 2 x vocabulary,
    # attention, experts, biases.
    model = load_model("microsoft/Phi-mini-MoE-instruct")
    assert round(parameter_count(model) / 1e9, 1) == 7.6
    attention = 4096 * 6144 + 6144 + 4096 * 4096 + 4096
    experts = 16 * (4096 + 3 * 4096 * 960)
    head = 32064 * (2 * 4096 + 1)
    assert parameter_count(model) == head + 32 * (attention + experts + 4 * 4096) + 2 * 4096
    assert any("sliding window" in note for note in model.notes)


def test_every_preset_names_its_source_and_is_found_by_its_last_part() -> None:
    for name in model_names():
        model = load_model(name)
        assert model.name == name
        assert "huggingface.co/" in model.source
        assert load_model(name.rpartition("/")[2].upper()) == model


def test_alias_keeps_its_own_name() -> None:
    base, alias = load_model("meta-llama/Llama-3.1-8B"), load_model("llama-3.1-8b-instruct")
    assert alias.name == "meta-llama/Llama-3.1-8B-Instruct"
    assert (alias.hidden_size, alias.source) == (base.hidden_size, base.source)


def test_context_of_the_2507_release() -> None:
    assert load_model("Qwen3-30B-A3B").max_position_embeddings == 40960
    assert load_model("Qwen3-30B-A3B-Instruct-2507").max_position_embeddings == 262144


def test_unknown_name_says_nearest_and_where_the_list_is() -> None:
    with pytest.raises(InputError) as error:
        load_model("meta-lama/Llama-3.1-8b")
    text = str(error.value)
    assert 'did you mean "meta-llama/Llama-3.1-8B"' in text
    assert f"{len(model_names())} are bundled in llmsim/presets/models" in text


def test_file_and_folder_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "meta-llama" / "Mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    by_folder, by_file = load_model("meta-llama/Mine"), load_model("./meta-llama/Mine/config.json")
    assert by_folder.name == by_file.name == "meta-llama/Mine"
    assert by_folder.source == "meta-llama/Mine/config.json"
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    assert load_model("other.json").name == "other"


def test_hugging_face_cache_path_gives_the_id(tmp_path: Path) -> None:
    folder = tmp_path / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "d04e592bb4f6"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(folder)).name == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"model_type": "llama",\n  "hidden_size" 4096}', ":2:17"),
        (b"", ":1:1"),
        (b"[1, 2]", "list"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 100_000, "too large"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "too large"),
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_model(str(path))
    assert str(path) in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "name", ["", "  ", "a\0b", "./nowhere", "/nowhere/config.json", "no.json", "x" * 5000]
)
def test_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises(InputError):
        load_model(name)


def test_folder_without_config_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder without a config\.json"):
        load_model(str(tmp_path))


REQUIRED = [key for key in LLAMA if key not in ("num_key_value_heads", "torch_dtype")]


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_field_is_named(key: str) -> None:
    fields = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(InputError, match=f'config.json: field "{key}" is missing'):
        parse_config(fields, name="m", source="config.json")


@pytest.mark.parametrize("key", LLAMA)
@pytest.mark.parametrize("value", [[], {}, True, 1.5, math.nan, "4096", -1, 0, 10**30])
def test_wrong_values_are_named_with_file_and_field(key: str, value: object) -> None:
    with pytest.raises(LlmsimError) as error:
        parse(**{key: value})
    assert "config.json" in str(error.value)
    assert f'"{key}"' in str(error.value)
    assert len(str(error.value)) < 300


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc_", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc_", max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
KNOWN_KEYS = [
    *QWEN_MOE,
    "head_dim",
    "dtype",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "layer_types",
    "use_sliding_window",
    "quantization_config",
    "rope_scaling",
    "mlp_only_layers",
    "decoder_sparse_step",
    "text_config",
]


@given(st.dictionaries(st.sampled_from(KNOWN_KEYS), any_json, max_size=3))
def test_any_value_in_any_field_parses_or_is_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    try:
        model = parse_config({**QWEN_MOE, **changes}, name="m", source="config.json")
    except LlmsimError as error:
        assert str(error).startswith("config.json")
        assert "\n" not in str(error)
    else:
        assert parameter_count(model) > 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"num_experts": 8}, "num_experts"),
        (
            {"model_type": "qwen3_moe", "num_experts": 8, "shared_expert_intermediate_size": 8},
            "shared_expert",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"model_type": "gemma3"}, "model_type"),
        ({"ssm_state_size": 16}, "ssm_state_size"),
        ({"vision_config": {"hidden_size": 1}}, "vision_config"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method"),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "bits"),
    ],
)
def test_what_does_not_run_yet_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(NotYetError, match=f'"{field}'):
        parse(**changes)


def test_windows_that_change_nothing_are_accepted() -> None:
    assert parse(model_type="mistral", sliding_window=None)
    assert parse(model_type="mistral", sliding_window=131072)
    assert parse(model_type="qwen2", sliding_window=4096, use_sliding_window=False)
    assert parse(model_type="qwen3", layer_types=["full_attention"] * 32)


def test_a_window_of_one_token_is_refused_where_layers_see_it() -> None:
    with pytest.raises(InputError, match="layers see a window of 1 token"):
        parse(model_type="gemma2", head_dim=128, sliding_window=1)
    assert parse(model_type="gemma2", head_dim=128, sliding_window=2).window == 2
    assert parse(model_type="qwen2", sliding_window=1, use_sliding_window=False)


def test_heads_must_be_shared_evenly() -> None:
    with pytest.raises(InputError, match="num_key_value_heads 5"):
        parse(num_key_value_heads=5)
    with pytest.raises(InputError, match="give head_dim"):
        parse(hidden_size=4100)


def test_families_differ_where_their_checkpoints_do() -> None:
    qwen2, qwen3 = parse(model_type="qwen2"), parse(model_type="qwen3")
    assert (qwen2.attention_bias, qwen2.o_proj_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.attention_bias, qwen3.qk_norm) == (False, True)
    llama = parse(attention_bias=True)
    assert (llama.attention_bias, llama.o_proj_bias) == (True, True)


def test_sparse_step_and_dense_exceptions() -> None:
    def layers(**changes: Any) -> tuple[bool, ...]:
        return parse_config({**QWEN_MOE, **changes}, name="m", source="config.json").moe_layers

    assert layers() == (True,) * 6
    assert layers(decoder_sparse_step=2) == (False, True) * 3
    assert layers(mlp_only_layers=[0, 5]) == (False, True, True, True, True, False)
    with pytest.raises(InputError, match="num_experts_per_tok"):
        layers(num_experts_per_tok=17)


def test_dtype_spellings() -> None:
    assert parse(torch_dtype="float16").dtype == "fp16"
    newer = {**{k: v for k, v in LLAMA.items() if k != "torch_dtype"}, "dtype": "bfloat16"}
    assert parse_config(newer, name="m", source="c").notes == ()
    silent = parse(torch_dtype=None)
    assert silent.dtype == "bf16"
    assert "bfloat16 is assumed" in silent.notes[0]
    with pytest.raises(InputError, match="torch_dtype"):
        parse(torch_dtype="fp8")


def test_quantised_checkpoint() -> None:
    model = parse(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert (model.dtype, model.weight_dtype, model.weight_block) == ("bf16", "fp8", (128, 128))


def test_rope_scaling_extends_the_context_as_in_vllm() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert parse(rope_scaling=yarn).max_position_embeddings == 131072
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert parse(rope_scaling=llama3).max_position_embeddings == 131072


def test_resolved_dtypes() -> None:
    plain, quantised = parse(), parse(quantization_config={"quant_method": "fp8"})
    both = [
        resolve_dtypes(plain),
        resolve_dtypes(plain, "fp16", "fp8"),
        resolve_dtypes(plain, "fp8"),
    ]
    assert [(d.weight, d.activation, d.kv) for d in both] == [
        ("bf16", "bf16", "bf16"),
        ("fp16", "fp16", "fp8"),
        ("fp8", "bf16", "bf16"),
    ]
    half = resolve_dtypes(quantised, "float16")
    assert (half.weight, half.activation, half.kv) == ("fp8", "fp16", "fp16")
    with pytest.raises(InputError, match="did you mean"):
        resolve_dtypes(plain, "bfloat61")


def test_reduced_configs_of_the_peer_load() -> None:
    folder = shared("artifact/model_config")
    loaded = {
        model.name: model for model in (load_model(str(p)) for p in sorted(folder.glob("*/*.json")))
    }
    assert set(loaded) == {
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-70B",
        "microsoft/Phi-mini-MoE-instruct",
        "mistralai/Mixtral-8x7B-v0.1",
    }
    for name, model in loaded.items():
        assert parameter_count(model) == pytest.approx(parameter_count(load_model(name)), rel=1e-3)
    assert loaded["microsoft/Phi-mini-MoE-instruct"].moe_intermediate_size == 960
