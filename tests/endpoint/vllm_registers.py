"""Prints what the server of the installed vLLM registers: each metric's type, labels and bounds.

Its options are a LoRA configuration and three drafts for a model of 1,000 tokens.
"""

import json
from types import SimpleNamespace

from prometheus_client import REGISTRY
from vllm import __version__  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found, unused-ignore]
    PrometheusStatLogger,
)

OBSERVED = SimpleNamespace(
    show_hidden_metrics=False,
    kv_cache_metrics=False,
    custom_histogram_buckets=None,
    enable_mfu_metrics=False,
    cudagraph_metrics=False,
)
MODEL = SimpleNamespace(served_model_name="model", max_model_len=1000, is_diffusion=False)
CONFIG = SimpleNamespace(
    observability_config=OBSERVED,
    model_config=MODEL,
    speculative_config=SimpleNamespace(num_speculative_tokens=3),
    lora_config=SimpleNamespace(max_loras=2),
    kv_transfer_config=None,
    ec_transfer_config=None,
    watermark_config=None,
)

if __name__ == "__main__":
    PrometheusStatLogger(CONFIG, [0])
    named = [one for one in REGISTRY._collector_to_names if hasattr(one, "_labelnames")]
    metrics = {
        one._name.removeprefix("vllm:"): [
            one._type,
            sorted(one._labelnames),
            [bound for bound in getattr(one, "_upper_bounds", []) if bound != float("inf")],
        ]
        for one in named
        if one._name.startswith("vllm:")
    }
    print(json.dumps({"version": __version__, "metrics": metrics}))
