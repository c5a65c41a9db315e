"""Words that people give to a run although a run has another name for them, or another place."""

import re
from collections.abc import Callable, Container

from llmsim.config.engine.options import EngineOptions

IN_CLUSTER = "the cluster file has it as `{}`; `llmsim init` writes one"
OPTION = 'it is called "{}" here'
IN_DATASET = "the dataset has it, as in {}"

_PLACES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("model", "model_name", "served_model_name"), IN_CLUSTER.format("model_name")),
    (("model_name", "served_model_name", "model_path"), OPTION.format("{model}")),
    (("device", "gpu", "hardware", "gpu_type"), IN_CLUSTER.format("hardware")),
    (("gpu", "gpus", "hardware", "gpu_type", "system"), OPTION.format("{device}")),
    (("tensor_parallel_size", "tp", "tp_size"), IN_CLUSTER.format("tp_size")),
    (("pipeline_parallel_size", "pp", "pp_size"), IN_CLUSTER.format("pp_size")),
    (("expert_parallel_size", "ep", "ep_size"), IN_CLUSTER.format("ep_size")),
    (("data_parallel_size", "dp"), IN_CLUSTER.format("data_parallel_size")),
    (("instances", "replicas", "num_gpus"), IN_CLUSTER.format("instances")),
    (("num_gpus", "max_gpus", "total_gpus"), OPTION.format("{max_devices}")),
    (("rate", "request_rate", "qps"), IN_DATASET.format("synthetic:n=100,rate=10")),
    (("request_rate", "qps"), OPTION.format("{rate}")),
    (
        ("input", "input_len", "random_input_len", "isl"),
        IN_DATASET.format("input=lognormal:500"),
    ),
    (("input_len", "random_input_len", "isl", "input_tokens"), OPTION.format("{input}")),
    (
        ("output_tokens", "output_len", "random_output_len", "osl"),
        IN_DATASET.format("output=lognormal:100"),
    ),
    (
        ("output", "output_len", "random_output_len", "osl"),
        OPTION.format("{output_tokens}"),
    ),
    (("vllm_version", "engine_version"), OPTION.format("{engine_profile}")),
    (("router", "routing", "routing_policy"), OPTION.format("{request_routing_policy}")),
    (("slo",), OPTION.format("{goodput}")),
    (("goodput", "sla"), OPTION.format("{slo}")),
    (("trace", "workload", "dataset_path"), OPTION.format("{dataset}")),
    (("num_prompts", "num_requests"), OPTION.format("{num_reqs}")),
    (("cluster", "config"), OPTION.format("{cluster_config}")),
    (("concurrency",), OPTION.format("{max_concurrency}")),
    (("max_concurrency",), OPTION.format("{concurrency}")),
    (
        ("power_cap", "power_limit", "gpu_power_limit"),
        "the cluster file has it as `power_cap` in the `power` of a node",
    ),
    (
        ("quantization",),
        'the model\'s config.json has it as `quantization_config`, and "{dtype}" fp8 or int8 sets '
        "one type for all weights and activations",
    ),
    (
        ("cpu_offload_gb", "cpu_offload"),
        "`placement` of an instance keeps weights in host memory (docs/explanation/memory.md)",
    ),
    (
        ("swap_space", "kv_offloading"),
        '"{prefix_storage}" CPU keeps KV in host memory (docs/explanation/kv_tiers.md)',
    ),
    (
        ("kv_offloading_backend",),
        'only vLLM\'s native backend is modelled, and "{kv_offloading_size}" turns it on',
    ),
    (
        ("enable_lora", "lora_modules"),
        'adapters are those of the trace, and "{max_loras}" turns vLLM\'s slots for them on',
    ),
    (
        ("kv_transfer_config",),
        '"{kv_offloading_size}" is its OffloadingConnector, and `pd_type` of the cluster file '
        "its `kv_role`",
    ),
)
"""Words with underscores, and what to do instead; `{option}` stands for an option's own spelling,
and counts where the command has that option.
"""

_NAMED = re.compile(r"\{(\w+)\}")


def elsewhere(word: str, spelled: Callable[[str], str], known: Container[str]) -> str:
    """`; ...` saying where a run has what `word` means, or an empty string.

    `spelled` gives the spelling of an option, `--engine-profile` or `engine_profile`; `known` are
    the names, with underscores, that the command takes.
    """
    for words, place in _PLACES:
        if word not in words:
            continue
        named = _NAMED.search(place)
        if named is None and "cluster_config" in known:
            return "; " + place
        if named is not None and named[1] in known:
            return "; " + place.replace(named[0], spelled(named[1]))
    if "cluster_config" in known and word in EngineOptions.model_fields:
        return f"; an instance or `engine` of the cluster file has it as `{word}`"
    return ""
