"""The schedulers by name: which defaults each brings, and which options mean nothing to it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from llmsim.config.engine.options import scheduler_parameters
from llmsim.config.errors import InputError

if TYPE_CHECKING:
    from llmsim.config.engine.args import EngineArgs
    from llmsim.config.engine.profile import EngineProfile

VLLM = "vllm_v1"
INSTALLED = "vllm"
SCHEDULERS = (VLLM, INSTALLED, "sarathi", "orca", "static", "sglang", "mlfq")
PIPELINED = (VLLM, "sarathi", "orca")
"""Those that keep several batches in flight, as pipeline stages do."""
HANDING_OVER = (VLLM, "sglang")
"""Those whose prefill and decode instances may be apart."""
POLICIES = ("fcfs", "priority", "sjf", "slack")

OWN_DEFAULTS: Mapping[str, Any] = {
    "scheduler": VLLM,
    "prioritize_prefill": False,
    "skip_prefill": False,
    "ttft_target_ns": 1_000_000_000,
    "lockstep_dense_dp": False,
    "dp_sync_interval": 32,
    "pipeline_extra_batches": 0,
    "ignore_eos": True,
    "use_v2_model_runner": None,
    "enable_eplb": False,
    "num_redundant_experts": 0,
    "expert_placement_strategy": "linear",
    "speculative_config": None,
    "max_num_scheduled_tokens": None,
    "max_num_active_seqs": None,
    "long_prefill_token_threshold_adaptive": False,
    "prefill_schedule_interval": 1,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
    "cudagraph_mode": None,
    "enforce_eager": False,
    "launch_ns": None,
    "enable_sequence_parallelism": False,
    "decode_context_parallel_size": 1,
    "all2all_backend": "allgather_reducescatter",
    "all_reduce_implementation": None,
    "all_gather_implementation": None,
    "reduce_scatter_implementation": None,
    "all_to_all_implementation": None,
}
"""Options that no engine has, and what a profile need not say; the default of each does what the
engine does.

dp_sync_interval: 32 in vLLM 0.19 and 0.24 (v1/engine/core.py, DPEngineCoreProc).
"""

VERSIONED = (
    "max_num_active_seqs",
    "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
"""Options that only some versions of the engine have: those that name them in `options`."""

_OTHERS: Mapping[str, Any] = {"async_scheduling": False}
_PAPERS: Mapping[str, Any] = {**_OTHERS, "enable_prefix_caching": False}
_WHOLE_PROMPTS: Mapping[str, Any] = {**_PAPERS, "enable_chunked_prefill": False}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    VLLM: {},
    INSTALLED: {},
    "sarathi": _PAPERS,
    "orca": _WHOLE_PROMPTS,
    "static": _WHOLE_PROMPTS,
    "sglang": {**_OTHERS, "block_size": 1},
    "mlfq": _WHOLE_PROMPTS,
}
"""What a scheduler's default is instead of the engine profile's (docs/reference/schedulers.md)."""

_OFF = (None, False, 0, 0.0)
_ONLY_VLLM = (
    "long_prefill_token_threshold",
    "reserve_full_isl",
    "async_scheduling",
    "prioritize_prefill",
    "speculative_config",
    "max_num_active_seqs",
    "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval",
)

Position = Callable[[str], str]
Refuse = Callable[[str, str], InputError]


def check_scheduler(values: Mapping[str, Any], positions: Mapping[str, Position]) -> None:
    """Raises InputError for the first given option that contradicts the scheduler or means nothing
    to it.

    `values` are all options, `positions` name those that were given.
    """
    name = values["scheduler"]

    def refuse(option: str, reason: str) -> InputError:
        return InputError(f"{positions[option](option)} {reason}")

    for option, mark in scheduler_parameters().items():
        if option in positions and mark.scheduler != name:
            raise refuse(
                option,
                f"is a parameter of the scheduler {mark.scheduler}, not of {name}; remove it",
            )
    if name == INSTALLED:
        _check_installed(values, positions, refuse)
    elif name != VLLM:
        _check_other(name, values, positions, refuse)
    if values["prioritize_prefill"] and values["skip_prefill"]:
        option = "prioritize_prefill" if "prioritize_prefill" in positions else "skip_prefill"
        raise refuse(
            option, "contradicts skip_prefill: a decode-only run has no prefill; remove one of them"
        )
    if "ttft_target_ns" in positions and values["scheduling_policy"] != "slack":
        raise refuse(
            "ttft_target_ns",
            'has an effect only with scheduling_policy "slack"; remove it, or say "slack"',
        )


def check_async_stages(
    args: "EngineArgs", profile: "EngineProfile", position: str, stages: int
) -> None:
    """Only vllm_v1 schedules pipeline stages asynchronously, and only in versions of
    vLLM that do.
    """
    if args.scheduler != VLLM or not profile.async_stages:
        raise InputError(
            f"{position}: async_scheduling is true ({args.origin['async_scheduling']}) with "
            f"{stages} pipeline stages, "
            f"which {profile.name} with the scheduler {args.scheduler} does not run; leave it "
            "out, or set it false"
        )


def _check_installed(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    for option in ("prioritize_prefill", "skip_prefill"):
        if option in positions and values[option]:
            raise refuse(option, f"is no option of vLLM's scheduler; choose the scheduler {VLLM}")
    if values["scheduling_policy"] not in ("fcfs", "priority"):
        raise refuse(
            "scheduling_policy", f"is no order of vLLM's scheduler; choose the scheduler {VLLM}"
        )


def _check_other(
    name: str, values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    for option in _ONLY_VLLM:
        if option in positions and values[option] not in _OFF:
            raise refuse(option, f"is an option of the scheduler {VLLM}, not of {name}; remove it")
    if "watermark" in positions and values["watermark"] and name != "sarathi":
        raise refuse(
            "watermark",
            f"is an option of the schedulers {VLLM} and sarathi, not of {name}; remove it",
        )
    chunks = DEFAULTS[name].get("enable_chunked_prefill", True)
    if "enable_chunked_prefill" in positions and values["enable_chunked_prefill"] != chunks:
        rule = "always cuts prompts to the token budget" if chunks else "runs whole prompts"
        raise refuse(
            "enable_chunked_prefill", f"cannot be chosen: the scheduler {name} {rule}; remove it"
        )
    if (
        name in ("orca", "static")
        and "enable_prefix_caching" in positions
        and values["enable_prefix_caching"]
    ):
        raise refuse(
            "enable_prefix_caching",
            f"is on, but the scheduler {name} has no prefix cache; remove it",
        )
    if name == "mlfq" and values["scheduling_policy"] != "fcfs":
        raise refuse(
            "scheduling_policy", "is given, but the scheduler mlfq orders by its levels; remove it"
        )
