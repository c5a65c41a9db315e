"""What stands for a published model: a preset of equal shapes, or a config.json's fields."""

import json
from importlib.resources import files
from typing import Any

MODELS: dict[str, str | dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "meta-llama/Meta-Llama-3-8B-Instruct": "meta-llama/Meta-Llama-3-8B",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "google/gemma-2-2b-it": "google/gemma-2-2b",
    "google/gemma-2-9b-it": "google/gemma-2-9b",
    "google/gemma-3-27b-it": "google/gemma-3-27b-it",
    "ibm-granite/granite-3.3-8b-instruct": "ibm-granite/granite-3.1-8b-instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "openai/gpt-oss-20b": "openai/gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "Qwen/Qwen3-30B-A3B-FP8",
    "codellama/CodeLlama-7b-hf": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32016, "max_position_embeddings": 16384,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    },
    "ibm-granite/granite-3.1-2b-instruct": {
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16", "tie_word_embeddings": True, "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    },
    "microsoft/phi-2": {
        "model_type": "phi", "architectures": ["PhiForCausalLM"], "hidden_size": 2560,
        "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 51200, "max_position_embeddings": 2048,
        "torch_dtype": "float16", "tie_word_embeddings": False, "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.4,
    },
    "google/gemma-3-12b-it": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 3840,
        "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "sliding_window": 1024,
        "sliding_window_pattern": 6, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip
"""Name on the page -> preset, or fields of its config.json."""

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def _with_fp8(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "quantization_config": FP8}


_LLAMA_70B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}  # fmt: skip
_QWEN_7B = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}  # fmt: skip
MODELS |= {
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": _with_fp8(_LLAMA_70B),
    "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8": {
        **_LLAMA_70B, "quantization_config": {"quant_method": "int8"},
    },
    "RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic": _with_fp8(_QWEN_7B),
}  # fmt: skip


def _of_preset(name: str, quantization: dict[str, Any]) -> dict[str, Any]:
    """A preset's config.json with the types of another checkpoint."""
    path = files("llmsim.presets").joinpath("models", f"{name}.json")
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**fields, "quantization_config": quantization}


MODELS |= {
    "Qwen/Qwen3.5-35B-A3B-FP8": _of_preset(
        "Qwen/Qwen3.5-35B-A3B", {**FP8, "weight_block_size": [128, 128]}
    ),
    "RedHatAI/gemma-4-26B-A4B-it-NVFP4": _of_preset(
        "google/gemma-4-26B-A4B-it", {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    ),
}
