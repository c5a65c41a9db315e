"""A model of transformers with random weights, from the config.json of a preset or of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmsim.model import load_model, resolve_dtypes
from llmsim.model.families.presets import config_path
from llmsim.profiler.device.device import torch_dtype

SEED = 0


def fields_of(model: str) -> dict[str, Any]:
    """The config.json of a preset or path, without notes."""
    return {
        k: v for k, v in json.loads(config_path(model).read_text("utf-8")).items() if k[0] != "_"
    }


def random_model(torch: Any, device: Any, model: str, dtype: str | None, seed: int = SEED) -> Any:
    """The architecture with random weights in `dtype` (short name; None: the model's), attending by
    SDPA.
    """
    import transformers

    numbers = torch_dtype(torch, resolve_dtypes(load_model(model), dtype).activation)
    torch.manual_seed(seed)
    transformers.logging.set_verbosity_error()
    with torch.device(device):
        made = transformers.AutoModelForCausalLM.from_config(
            _settings(fields_of(model)), dtype=numbers
        )
    return made.to(device=device, dtype=numbers).eval()


def _settings(fields: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    left_out = ("model_type", "torch_dtype", "dtype", "architectures", "transformers_version")
    kept = {name: value for name, value in fields.items() if name not in left_out}
    settings = AutoConfig.for_model(fields["model_type"], **kept)
    settings._attn_implementation = "sdpa"
    return settings
