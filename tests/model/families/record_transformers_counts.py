"""`PYTHON record_transformers_counts.py OUT.json`, with an interpreter that has transformers and
torch: counts the weights of every decoder that transformers describes.

A model is built on torch's meta device, which takes no memory. Each type has up to three rows: its
default config with eight layers; one with other switches and KV heads; one with attention's biases.
The sizes are facts about transformers; `test_transformers_counts.py` compares ours with them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS = 8
SWITCHES = ("mlp_bias", "use_qk_norm", "tie_word_embeddings")
CORRECTIONS = ("correction_bias", "expert_bias")
"""Ends of the names of a router's biases, which transformers keeps as buffers."""
UNREAD = {
    "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "eos_token_id",
    "id2label", "initializer_range", "label2id", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "problem_type", "return_dict", "rope_parameters",
    "rope_theta", "router_aux_loss_coef", "transformers_version", "use_cache", "_name_or_path",
}  # fmt: skip
"""Fields without a say in the number of weights."""


def build(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The config and the number of its weights, the correction biases of routers among them."""
    config = transformers.AutoConfig.for_model(model_type, **changes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    weights = sum(one.numel() for one in model.parameters())
    weights += sum(one.numel() for name, one in model.named_buffers() if name.endswith(CORRECTIONS))
    fields = {
        key: value
        for key, value in config.to_dict().items()
        if key not in UNREAD and value is not None and not isinstance(value, dict)
    }
    return {"config": json.loads(json.dumps(fields, default=str)), "parameters": weights}


def rows(model_type: str) -> list[dict[str, Any]]:
    """The rows of a type, as many of them as transformers can build."""
    try:
        fields = transformers.AutoConfig.for_model(model_type).to_dict()
    except Exception as error:  # a type without a default config
        print(f"{model_type}: {error!r}"[:160], file=sys.stderr)
        return []
    few = {"num_hidden_layers": LAYERS} if "num_hidden_layers" in fields else {}
    other = {name: not fields[name] for name in SWITCHES if isinstance(fields.get(name), bool)}
    heads = fields.get("num_attention_heads")
    if isinstance(heads, int) and isinstance(fields.get("num_key_value_heads"), int):
        other["num_key_value_heads"] = heads // 2 if heads % 2 == 0 else heads
    found = []
    biased = [{**few, "attention_bias": True}] if "attention_bias" in fields else []
    for changes in (few, {**few, **other}, *biased):
        try:
            found.append(build(model_type, changes))
        except Exception as error:  # of what transformers itself refuses
            print(f"{model_type} {changes}: {error!r}"[:160], file=sys.stderr)
    return found


def main() -> None:
    transformers.logging.set_verbosity_error()
    models = {name: rows(name) for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    lines = [
        f"{json.dumps(name)}: {json.dumps(found, sort_keys=True)}"
        for name, found in models.items()
        if found
    ]
    version = json.dumps(transformers.__version__)
    text = ",\n".join(lines)
    Path(sys.argv[1]).write_text(
        f'{{"transformers": {version}, "models": {{\n{text}\n}}}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
