"""Keys of an instance under the names of `vllm serve`: what each of them stands for here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from llmsim.config.constraints import broken_rule

if TYPE_CHECKING:
    from llmsim.config.cluster_file.dialect import LayoutKeys
    from llmsim.config.cluster_file.instance import Instance

SIZES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
"""Keys of the layout that have a second name."""
WITHOUT_EFFECT = (
    "api_key",
    "disable_log_requests",
    "disable_log_stats",
    "distributed_executor_backend",
    "download_dir",
    "enable_auto_tool_choice",
    "host",
    "load_format",
    "port",
    "reasoning_parser",
    "revision",
    "served_model_name",
    "tokenizer",
    "tokenizer_mode",
    "tool_call_parser",
    "trust_remote_code",
    "uvicorn_log_level",
)
"""Options of a server that change no time and no memory."""


def renamed(given: Any) -> Any:
    """The fields of an instance, with `model_name` where it says `model`.

    Raises a broken rule for an option of a server that a simulation has no use for.
    """
    if not isinstance(given, Mapping):
        return given
    fields = dict(given)
    for key in fields:
        if str(key).replace("-", "_") in WITHOUT_EFFECT:
            raise broken_rule(key, "is an option of a server and changes no figure; leave it out")
    if fields.get("model") is not None:
        fields.setdefault("model_name", fields["model"])
    return fields


def data_parallel(keys: "LayoutKeys", ranks: int | None) -> "LayoutKeys":
    """`data_parallel_size` ranks as those of the attention, each an engine of its own.

    Raises a broken rule where other keys say the same.
    """
    if ranks is None or ranks == 1:
        return keys
    for name in ("dp_group", "ep_size", "attn_tp_size", "attn_dp_size", "npu_num", "npu_group"):
        if getattr(keys, name) is not None:
            raise broken_rule(
                "data_parallel_size",
                f"is given, and so is {name}; lay the ranks out by one of them",
            )
    return replace(keys, tp_size=None, attn_tp_size=keys.tp_size or 1, attn_dp_size=ranks)


def cuts_experts(instance: "Instance", keys: "LayoutKeys") -> bool:
    """Whether every expert is cut over the ranks, as vLLM does without --enable-expert-parallel.

    Keys of other simulators spread experts unless they say otherwise; so does an instance with one
    of those beside vLLM's names.
    """
    if instance.enable_expert_parallel is not None:
        return not instance.enable_expert_parallel
    in_words_of_vllm = instance.tensor_parallel_size or instance.data_parallel_size
    return bool(in_words_of_vllm) and all(
        getattr(keys, name) is None
        for name in ("ep_size", "dp_group", "ffn_tp_size", "ffn_ep_size", "attn_tp_size")
    )


def check_experts(keys: "LayoutKeys", enabled: bool | None) -> None:
    """Raises a broken rule where `enable_expert_parallel` and another key lay the experts out."""
    for name in ("ep_size", "ffn_tp_size", "ffn_ep_size"):
        if enabled is not None and getattr(keys, name) is not None:
            raise broken_rule(
                "enable_expert_parallel", f"is given, and so is {name}; keep one of them"
            )
