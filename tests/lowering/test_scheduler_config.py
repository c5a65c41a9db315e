"""What of the engine's options reaches the native scheduler."""

from pathlib import Path
from typing import Any

import pytest
from native.pd import PER_TOKEN, STEP, program

from llmsim import _native
from llmsim.config import EngineArgs, EngineOverrides, load_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.lowering.scheduler import chance, scheduler_config

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
BLOCKS, LENGTH = 1000, 2048
DRAFTS = {"num_speculative_tokens": 3, "acceptance_rate": 0.7}


def engine(**overrides: Any) -> EngineArgs:
    return resolve(load_cluster(CLUSTER), EngineOverrides(**overrides)).groups[0].engine


def config(
    pd_type: str | None = None, stages: int = 1, context_ranks: int = 1, **overrides: Any
) -> Any:
    made = engine(**overrides)
    a_program = program(made.max_num_batched_tokens, 8, 4)
    return scheduler_config(made, BLOCKS, LENGTH, a_program, pd_type, context_ranks, stages=stages)


def test_limits_and_sizes_are_the_engines() -> None:
    found = config(
        max_num_seqs=7, max_num_batched_tokens=512, block_size=32, watermark=0.0157, context_ranks=2
    )
    assert (found.max_num_seqs, found.max_num_scheduled_tokens, found.watermark_blocks) == (
        7,
        512,
        15,
    )
    assert (found.kv.num_blocks, found.kv.block_size, found.kv.max_model_len) == (
        BLOCKS,
        64,
        LENGTH,
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_switches_are_the_engines(wanted: bool) -> None:
    found = config(
        enable_prefix_caching=wanted,
        enable_chunked_prefill=wanted,
        reserve_full_isl=wanted,
        prioritize_prefill=wanted,
    )
    assert (
        found.kv.prefix_caching
        is found.chunked_prefill
        is found.reserve_full_isl
        is found.prefill_first
        is wanted
    )


@pytest.mark.parametrize(
    ("method", "drops"),
    [
        ({"method": "eagle"}, True),
        ({"method": "mtp"}, True),
        ({"method": "ngram"}, False),
        ({}, False),
    ],
)
def test_a_head_of_the_model_needs_the_last_block_computed(
    method: dict[str, Any], drops: bool
) -> None:
    """vLLM drops the last cached block where the drafter reads hidden states."""
    asked = {"speculative_config": {**DRAFTS, **method}} if method else {}
    found = config(**asked)
    assert found.kv.drops_last_hit is drops
    assert found.speculation.tokens == (3 if method else 0)


def test_slack_knows_how_long_a_token_of_a_prompt_takes() -> None:
    """That of the longest prompt that a step holds: the time of an empty step is spread over its
    tokens.
    """
    found = config(scheduling_policy="slack", max_num_batched_tokens=500, ttft_target_ns=300e6)
    assert found.queue.prefill_ps_per_token == (STEP + 500 * PER_TOKEN) // 500
    assert found.queue.ttft_target_ps == 300 * 10**9
    assert config(max_num_batched_tokens=500).queue.prefill_ps_per_token == 0


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", "FCFS"), ("priority", "PRIORITY"), ("sjf", "SHORTEST"), ("slack", "SLACK")],
)
def test_the_order_of_the_queue(policy: str, order: str) -> None:
    assert config(scheduling_policy=policy).queue.order == getattr(_native.QueueOrder, order)


@pytest.mark.parametrize(
    ("pd_type", "ignore_eos", "foreseen"),
    [(None, True, True), (None, False, False), ("prefill", False, True), ("decode", False, False)],
)
def test_a_prefill_groups_only_token_is_foreseen(
    pd_type: str | None, ignore_eos: bool, foreseen: bool
) -> None:
    found = config(pd_type, ignore_eos=ignore_eos)
    assert found.output_length_known is foreseen
    assert (found.kv_producer, found.kv_consumer) == (pd_type == "prefill", pd_type == "decode")


@pytest.mark.parametrize(
    ("profile", "stages", "in_flight", "late"),
    [("vllm-0.24", 1, True, True), ("vllm-0.24", 1, False, False), ("vllm-0.24", 2, False, True),
     ("vllm-0.19", 2, True, False)],
)  # fmt: skip
def test_blocks_in_flight_are_freed_late_since_a_version(
    profile: str, stages: int, in_flight: bool, late: bool
) -> None:
    found = config(stages=stages, engine_profile=profile, async_scheduling=in_flight)
    assert found.defer_block_free is late
    order = _native.FreeOrder.APPEND if profile == "vllm-0.19" else _native.FreeOrder.UNKEYED_FIRST
    assert found.kv.free_order == order


def test_chances_are_exact_at_both_ends() -> None:
    assert (chance(0.0), chance(0.5), chance(1.0)) == (0, 1 << 52, 1 << 53)


@pytest.mark.parametrize(
    ("scheduler", "option", "value", "name", "expected"),
    [
        ("mlfq", "mlfq_levels", 2, "levels", 2),
        ("mlfq", "mlfq_tokens_per_iteration", 64, "tokens_per_iteration", 64),
        ("mlfq", "mlfq_starvation_ns", 1.5, "starvation_ps", 1500),
        ("sglang", "sglang_new_tokens", 16, "new_tokens", 16),
        ("sglang", "sglang_reserved_tokens", 0, "reserved_tokens", 0),
    ],
)
def test_a_schedulers_own_parameter_reaches_the_core(
    scheduler: str, option: str, value: float, name: str, expected: int
) -> None:
    changed = engine(scheduler=scheduler, **{option: value})
    default = {kind["name"]: kind for kind in _native.schedulers()}[scheduler]["parameters"]
    assert config(scheduler=scheduler, **{option: value}).parameters[name] == expected
    assert config(scheduler=scheduler).parameters == {one[0]: one[1] for one in default}
    assert changed.shown()[f"{scheduler}_{name}"] == expected
    assert changed.origin["scheduler_parameters"] == "command line"
    with pytest.raises(
        InputError, match=f"is a parameter of the scheduler {scheduler}, not of vllm_v1; remove it"
    ):
        engine(**{option: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sglang_preemption_threshold": 3}, "has an effect only with sglang_priority_scheduling"),
        (
            {"sglang_priority_scheduling": True, "sglang_schedule_policy": "lpm"},
            "is lpm, which SGLang does not order by priorities; choose fcfs or lof",
        ),
        (
            {"sglang_priority_scheduling": True, "scheduling_policy": "priority"},
            "contradicts scheduling_policy; remove one of them",
        ),
        (
            {"sglang_schedule_policy": "shortest-prefill-first", "enable_prefix_caching": False},
            "which needs the prefix cache; set enable_prefix_caching true",
        ),
    ],
)
def test_orders_of_sglangs_queue_go_with_some_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        engine(scheduler="sglang", **options)


def test_several_modules_of_a_head_are_known_from_033_on() -> None:
    speculative = {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "num_nextn_predict_layers": 2,
        "acceptance_rate": 0.5,
    }
    with pytest.raises(InputError, match=r"asks for 2 modules, which vllm-0\.24"):
        engine(engine_profile="vllm-0.24", speculative_config=speculative)
    native = config(engine_profile="vllm-0.33", speculative_config=speculative)
    assert native.speculation.prompt_lookahead == native.kv.key_lookahead == 3
    assert native.kv.unsettled_tokens == 2
