"""Small clusters of small models in every parallel layout, and their runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config import Deployment, EngineOverrides, parse_cluster, resolve
from llmsim.core import Results
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.lowering import LoweredDeployment, LoweringOptions, lower
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import simulate
from llmsim.workload import load_dataset

TRACE = "synthetic:n=40,rate=200,input=lognormal:120,output=lognormal:12,seed=5"


def model(
    folder: Path,
    *,
    experts: int = 0,
    layers: int = 5,
    dense_first: int = 0,
    kv_heads: int = 8,
    latent: bool = False,
    shared: int = 0,
    width: int = 1024,
    heads: int = 8,
    window: int = 0,
    linear: bool = False,
    pattern: str = "",
    chosen: int = 0,
) -> str:
    """A config.json of a few layers; the path of it."""
    shape: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 64 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": 128 * heads,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    if window:
        shape |= {
            "model_type": "gemma3_text",
            "head_dim": 64,
            "sliding_window": window,
            "sliding_window_pattern": 2,
        }
    if experts:
        shape |= {
            "model_type": "qwen3_moe",
            "num_experts": experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "head_dim": 64,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(dense_first)),
        }
    if latent or (shared and not linear and not pattern):
        shape |= {
            "model_type": "deepseek_v2",
            "q_lora_rank": None,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "n_routed_experts": experts or None,
            "n_shared_experts": shared,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": dense_first,
        }
    if chosen:
        shape |= {
            "model_type": "deepseek_v32",
            "q_lora_rank": 96,
            "index_n_heads": 4,
            "index_head_dim": 32,
            "index_topk": chosen,
            "indexer_types": (["full", "shared"] * layers)[:layers],
        }
    if linear:
        shape |= {
            "model_type": "qwen3_next", "full_attention_interval": 2, "linear_num_key_heads": 8,
            "linear_key_head_dim": 32, "linear_num_value_heads": 16, "linear_value_head_dim": 32,
            "shared_expert_intermediate_size": 256 * shared,
        }  # fmt: skip
    if pattern:
        shape |= {
            "model_type": "nemotron_h",
            "num_hidden_layers": len(pattern),
            "hybrid_override_pattern": pattern,
            "n_groups": 1,
            "ssm_state_size": 32,
            "mamba_num_heads": 16,
            "mamba_head_dim": 64,
            "head_dim": 64,
            "n_routed_experts": experts,
            "moe_shared_expert_intermediate_size": 256,
            "n_shared_experts": shared,
            "moe_latent_size": 128,
        }
    folder.mkdir(parents=True, exist_ok=True)
    values = (
        experts,
        layers,
        dense_first,
        kv_heads,
        latent,
        shared,
        width,
        heads,
        window,
        linear,
        pattern,
        chosen,
    )
    path = folder / f"config-{'-'.join(map(str, values)).replace('*', 'A')}.json"
    path.write_text(json.dumps(shape), encoding="utf-8")
    return str(path)


def cluster(
    model_path: str, *, members: int = 1, nodes: int = 1, links: Any = 50, **instance: Any
) -> dict[str, Any]:
    """`members` equal instances on each of `nodes` nodes."""
    entry = {
        "model_name": model_path,
        "hardware": "H100",
        "npu_mem": {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0},
        "max_num_batched_tokens": 256,
        "max_num_seqs": 16,
        "num_gpu_blocks_override": 400,
        **instance,
    }
    latency = [2000 for _ in links] if isinstance(links, list) else 2000
    node = {"instances": [entry] * members}
    return {"link_bw": links, "link_latency": latency, "nodes": [node] * nodes}


def deployed(document: dict[str, Any]) -> Deployment:
    return resolve(parse_cluster(json.dumps(document)), EngineOverrides())


def lowered(
    document: dict[str, Any],
    *,
    exact: bool = False,
    experts: str = "BALANCED",
    collectives: Any = "auto",
) -> LoweredDeployment:
    options = LoweringOptions(
        cost_source="roofline",
        exact=exact,
        expert_routing=parse_expert_routing(experts),
        collectives=collectives,
    )
    return lower(deployed(document), options)


def run(
    document: dict[str, Any],
    *,
    exact: bool = False,
    trace: str = TRACE,
    router: str = "RR",
    experts: str = "BALANCED",
    collectives: Any = "auto",
) -> Results:
    deployment = lowered(document, exact=exact, experts=experts, collectives=collectives)
    workload = load_dataset(
        trace, known_models=deployment.models, granularity=deployment.granularity
    )
    return simulate(
        deployment, workload, SimulationOptions(router=parse_router(router), record_steps=True)
    )


def check_folded_is_expanded(document: dict[str, Any], **how: Any) -> Results:
    """The folded run, after it has been found equal to the expanded one to the picosecond."""
    folded, exact = (run(document, exact=exact, **how) for exact in (False, True))
    for column in folded.steps:
        assert np.array_equal(folded.steps[column], exact.steps[column]), column
    assert np.array_equal(folded.requests.finish_ps, exact.requests.finish_ps)
    assert set(folded.invariants.values()) == {"ok"}
    assert folded.time_shares == exact.time_shares
    return folded
