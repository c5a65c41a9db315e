"""Words that people give to a run although a run has another name for them, or another place."""

import re
from collections.abc import Callable, Container

IN_CLUSTER = "the cluster file has it as `{}`; `llmsim init` writes one"
OPTION = 'it is called "{}" here'
IN_DATASET = "the dataset has it, as in {}"

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("model", "model_name", "served_model_name"), IN_CLUSTER.format("model_name")),
    **dict.fromkeys(("device", "gpu", "hardware", "gpu_type"), IN_CLUSTER.format("hardware")),
    **dict.fromkeys(("tensor_parallel_size", "tp", "tp_size"), IN_CLUSTER.format("tp_size")),
    **dict.fromkeys(("pipeline_parallel_size", "pp", "pp_size"), IN_CLUSTER.format("pp_size")),
    **dict.fromkeys(("expert_parallel_size", "ep", "ep_size"), IN_CLUSTER.format("ep_size")),
    **dict.fromkeys(("data_parallel_size", "dp"), IN_CLUSTER.format("data_parallel_size")),
    **dict.fromkeys(("instances", "replicas", "num_gpus"), IN_CLUSTER.format("instances")),
    **dict.fromkeys(("rate", "request_rate", "qps"), IN_DATASET.format("synthetic:n=100,rate=10")),
    **dict.fromkeys(
        ("input", "input_len", "random_input_len", "isl"), IN_DATASET.format("input=lognormal:500")
    ),
    **dict.fromkeys(
        ("output_tokens", "output_len", "random_output_len", "osl"),
        IN_DATASET.format("output=lognormal:100"),
    ),
    **dict.fromkeys(("vllm_version", "engine_version"), OPTION.format("{engine_profile}")),
    **dict.fromkeys(
        ("router", "routing", "routing_policy"), OPTION.format("{request_routing_policy}")
    ),
    "slo": OPTION.format("{goodput}"),
    **dict.fromkeys(("trace", "workload", "dataset_path"), OPTION.format("{dataset}")),
    **dict.fromkeys(("num_prompts", "num_requests"), OPTION.format("{num_reqs}")),
    **dict.fromkeys(("cluster", "config"), OPTION.format("{cluster_config}")),
    "concurrency": OPTION.format("{max_concurrency}"),
}
"""Word with underscores -> what to do instead; `{option}` stands for an option's own spelling."""

_NAMED = re.compile(r"\{(\w+)\}")


def elsewhere(word: str, spelled: Callable[[str], str], known: Container[str]) -> str:
    """`; ...` saying where a run has what `word` means, or an empty string.

    `spelled` gives the spelling of an option, `--engine-profile` or `engine_profile`; `known` are
    the names, with underscores, that the command takes.
    """
    place = ELSEWHERE.get(word)
    if place is None:
        return ""
    named = _NAMED.search(place)
    if named is not None:
        return "; " + place.replace(named[0], spelled(named[1])) if named[1] in known else ""
    return "; " + place if "cluster_config" in known else ""
