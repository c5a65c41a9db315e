"""Cluster documents that the tests of the configuration start from."""

import json
from typing import Any

from llmsim.config import Cluster, parse_cluster

Json = dict[str, Any]


def small() -> Json:
    """The smallest cluster that runs: one device, one model."""
    return {
        "num_nodes": 1,
        "link_bw": 450,
        "link_latency": 1000,
        "nodes": [
            {
                "num_instances": 1,
                "cpu_mem": {"mem_size": 512, "mem_bw": 256, "mem_latency": 0},
                "instances": [
                    {
                        "model_name": "meta-llama/Llama-3.1-8B",
                        "hardware": "H100",
                        "npu_mem": {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0},
                        "pd_type": None,
                    }
                ],
            }
        ],
    }


def instance(document: Json, index: int = 0) -> Json:
    """An instance of the first node, to edit."""
    found: Json = document["nodes"][0]["instances"][index]
    return found


def with_instance(**fields: Any) -> Json:
    """The small cluster with keys added to its instance."""
    document = small()
    instance(document).update(fields)
    return document


def parsed(document: Any) -> Cluster:
    """The cluster of a document, as read from a file called c.json with a line for each value.

    Indented text would come of an encoder in Python, which takes longer than what is tested.
    """
    return parse_cluster(json.dumps(document, separators=(",\n", ": ")), "c.json")


def full() -> Json:
    """A valid cluster that gives every key of the schema; older layout keys and those of two
    domains apart.
    """
    document = small()
    options = {
        "engine_profile": "vllm-0.24",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "max_num_scheduled_tokens": 2000,
        "max_num_active_seqs": 64,
        "max_num_queued_reqs": 100,
        "prefix_match_unit": 16,
        "max_loras": 2,
        "max_lora_rank": 32,
        "max_cpu_loras": 8,
        "fully_sharded_loras": True,
        "kv_load_failure_policy": "recompute",
        "kv_load_failure_rate": 0.01,
        "kv_offloading_size": 16.0,
        "kv_offloading_blocks_per_chunk": 2,
        "kv_offloading_eviction_policy": "arc",
        "kv_offloading_prompt_only": False,
        "kv_offloading_store_threshold": 2,
        "kv_offloading_sync_load_budget_bytes": 1 << 30,
        "max_num_encoder_input_tokens": 4096,
        "encoder_cache_size": 8192,
        "disable_chunked_mm_input": True,
        "max_num_queued_tokens": 100000,
        "mlfq_levels": 4,
        "mlfq_tokens_per_iteration": 128,
        "mlfq_starvation_ns": 1e9,
        "tensorrt_llm_capacity_policy": "max_utilization",
        "tensorrt_llm_chunking_policy": "equal_progress",
        "sglang_new_tokens": 2048,
        "sglang_reserved_tokens": 256,
        "sglang_max_prefill_tokens": 8192,
        "sglang_conservativeness_permille": 700,
        "sglang_scheduler_recv_interval": 10,
        "sglang_mixed_chunk": True,
        "sglang_overlap": False,
        "sglang_schedule_policy": "lof",
        "sglang_priority_scheduling": True,
        "sglang_low_priority_values_first": True,
        "sglang_priority_preemption": False,
        "sglang_preemption_threshold": 2,
        "sglang_retraction_policy": "priority",
        "sglang_eagle_topk": 2,
        "sglang_draft_tokens": 8,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_size": 100,
        "hicache_write_policy": "write_back",
        "swa_full_tokens_ratio": 0.5,
        "mamba_full_memory_ratio": 0.4,
        "max_mamba_cache_size": 300,
        "mamba_radix_cache_strategy": "extra_buffer",
        "mamba_track_interval": 128,
        "hicache_storage_backend": "file",
        "hicache_storage_prefetch_policy": "best_effort",
        "hicache_prefetch_threshold": 64,
        "hicache_prefetch_timeout_base": 0.5,
        "hicache_prefetch_timeout_per_ki_token": 0.1,
        "hicache_storage_prefetch_retry_poll_interval": 4,
        "hicache_storage_prefetch_retry_max_attempts": 2,
        "prefill_schedule_interval": 2,
        "long_prefill_token_threshold_adaptive": True,
        "long_prefill_token_threshold": 512,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "prefix_cache_retention_interval": 0,
        "reserve_full_isl": True,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.01,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "npu_memory_utilization": 0.9,
        "num_gpu_blocks_override": 1000,
        "max_model_len": 4096,
        "dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "scheduler": "vllm_v1",
        "scheduling_policy": "fcfs",
        "ttft_target_ns": 500000000,
        "prioritize_prefill": False,
        "skip_prefill": False,
        "async_scheduling": True,
        "cuda_graph_sizes": [1, 2, 4],
        "cudagraph_capture_sizes": [1, 2, 4],
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "enforce_eager": False,
        "launch_ns": 6000,
        "prepare_ns": 3000000,
        "prepare_sequence_ns": 20000,
        "kv_read_ns": 100000,
        "kv_descriptor_ns": 1000,
        "fused_moe_ns": 200000,
        "api_latency_ns": 1500000,
        "endpoint": "chat",
        "api_server_count": 2,
        "api_request_ns": 1500000,
        "api_prompt_token_ns": 500,
        "api_chunk_ns": 30000,
        "host_gap_ns": 0.5,
        "host_sequence_ns": 0.25,
        "native_sampler": True,
        "dp_sync_interval": 16,
        "lockstep_dense_dp": False,
        "pipeline_extra_batches": 0,
        "ignore_eos": False,
        "use_v2_model_runner": True,
        "enable_eplb": True,
        "num_redundant_experts": 2,
        "expert_placement_strategy": "linear",
        "enable_sequence_parallelism": False,
        "decode_context_parallel_size": 1,
        "all2all_backend": "allgather_reducescatter",
        "all_reduce_implementation": "halvingDoubling",
        "all_gather_implementation": "direct4",
        "reduce_scatter_implementation": "bruck",
        "all_to_all_implementation": "ring,direct",
        "quick_reduce_quantization": "NONE",
        "quick_reduce_cast_bf16_to_fp16": True,
        "quick_reduce_min_size_bytes_mb": 0,
        "quick_reduce_max_size_bytes_mb": 64,
        "quick_reduce_quantization_min_size_kb": 512,
    }
    drafts = {"num_speculative_tokens": 2}
    by_model = {
        **drafts,
        "model": "meta-llama/Llama-3.2-1B",
        "draft_tensor_parallel_size": 1,
        "parallel_drafting": False,
        "num_speculative_tokens_per_batch_size": [[1, 8, 2]],
        "acceptance_rate": [0.8, 0.7],
    }
    by_lookup = {
        **drafts,
        "method": "ngram",
        "proposal_rate": 0.5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        "synthetic_acceptance_rates": [0.8, 0.6],
    }
    by_head = {
        **drafts,
        "method": "mtp",
        "num_nextn_predict_layers": 1,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.5,
    }
    where = {"weights": "cxl:1", "kv_loc": "npu", "kv_evict_loc": "cpu"}
    first = instance(document)
    domains = {"attn_tp_size": 1, "attn_dp_size": 2, "ffn_tp_size": 1, "ffn_ep_size": 2}
    apart = {**first, "npu_mem": dict(first["npu_mem"]), **domains}
    ranks = {**first, "npu_mem": dict(first["npu_mem"]), "enable_expert_parallel": True}
    older = {
        **first,
        "npu_mem": dict(first["npu_mem"]),
        "npu_num": 4,
        "npu_group": 2,
        "speculative_config": by_head,
    }
    attends = {
        **first,
        "npu_mem": dict(first["npu_mem"]),
        "pd_type": "attention",
        "afd_group": "layers",
        "afd_micro_batches": 3,
        "afd_dispatch": "routed",
    }
    first["npu_mem"]["mem_util"] = 0.9
    first.update(
        options,
        num_npus=2,
        tp_size=2,
        pp_size=1,
        tensor_parallel_size=2,
        pipeline_parallel_size=1,
        model=first["model_name"],
        data_parallel_size=1,
        ep_size=2,
        dp_group="a",
        pd_type="prefill",
    )
    first["pp_layers"], first["nnodes"] = [32], 1
    first["prefill_context_parallel_size"] = 1
    first["speculative_config"] = by_lookup
    first["placement"] = {
        "default": dict(where),
        "blocks": [{"blocks": "0-3,7", **where}],
        "layers": {"lm_head": dict(where)},
    }
    for switch in ("block_copy", "local_offloading", "attn_offloading", "sub_batch_interleaving"):
        first[f"enable_{switch}"] = False
    node = document["nodes"][0]
    node["instances"] += [older, apart, ranks, attends]
    node["num_instances"] = 5
    node["cpu_mem"]["pim_config"] = "DDR4_8GB_3200_pim"
    node["cpu_mem"]["pim_table"] = "pim.csv"
    node["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    node["host_link"] = {"bandwidth_gb_per_s": 64, "latency_ns": 900, "devices_per_link": 2}
    first["operator_devices"] = {}
    node["power"] = {
        "base_node_power": 60,
        "npu": {
            "H100": {
                "idle_power": 70,
                "standby_power": 115,
                "active_power": 700,
                "standby_duration": 18,
                "memory_energy_per_bit": 0.0,
                "power_cap": 700,
            }
        },
        "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
        "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
        "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
        "switch": {"num_switches": 1, "idle_power": 50, "energy_per_bit": 1.0},
        "nic": {"num_nics": 1, "idle_power": 20, "energy_per_bit": 10.0},
        "storage": {"num_devices": 2, "idle_power": 5, "energy_per_bit": 20.0},
    }
    node["price_per_hour"] = 1.5
    first["price_per_device_hour"] = 2.5
    first["peer_to_peer"] = True
    first.update(
        sub_batch_rule="shorter", weight_buffers=2, expert_prefetch="layer", expert_cache=0.5
    )
    document.update(
        link_bw=[450, 50], link_latency=[1000, 5000], description="all keys", engine=dict(options)
    )
    document["engine"]["speculative_config"] = by_model
    document["$schema"] = "cluster.schema.json"
    document |= {
        "host_link": {"bandwidth_gb_per_s": 32, "latency_ns": 700, "devices_per_link": 4},
        "kv_transfer": "layerwise",
        "kv_transfer_mode": "push",
        "topology": "h100_rails_32x8",
        "incast": {"buffer_bytes": 1 << 20, "burst_bytes": 65536, "efficiency_percent": 50},
    }
    first["topology_devices"], older["topology_group"] = [*range(first["num_npus"])], "node1"
    document["cxl_mem"] = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 4}
    document["cxl_mem"].update(idle_power=12, energy_per_bit=8.0)
    drive = {
        "mem_size": 3840,
        "read_bw": 14,
        "write_bw": 6,
        "read_latency": 80000,
        "write_latency": 10000,
    }
    document["storage"] = node["storage"] = {**drive, "queue_depth": 64}
    document.update(
        grid_gco2_per_kwh=400,
        electricity_price_per_kwh=0.1,
        slo_classes={"chat": {"ttft_ms": 300, "tpot_ms": 20, "e2el_ms": 9000}},
    )
    unshared: Json = json.loads(json.dumps(document))
    return unshared


def full_layouts() -> Json:
    """Every key of a cluster with layouts that no other cluster has."""
    document = small()
    [one] = document.pop("nodes")[0]["instances"]
    del document["num_nodes"]
    many, wide = {**one, "count": 4}, {**one, "tp_size": 4}
    triggers = (
        {"active_share_below": 0.1},
        {"at_s": 9},
        {"queue_empty": True},
        {"waiting_below": 3},
        {"tail": {"finished_share_above": 0.9}},
    )
    return {
        **document,
        "layouts": {"many": [many], "wide": [wide]},
        "node": {"devices": 8},
        "initial": "many",
        "decide": "my_module:MyReconfigure:below=64",
        "switch": [
            {"to": ("wide", "many")[i % 2], "when": when} for i, when in enumerate(triggers)
        ],
        "reconfiguration": {
            "weights": "links",
            "kv": "move",
            "host_gb_per_s": 50,
            "process_s": 0,
            "fixed_s": 1,
        },
    }
