"""Defaults by card, graph sizes, and the limits that need the model's context length."""

from typing import Any

import pytest
from cluster_examples import instance, parsed, small
from hypothesis import given
from hypothesis import strategies as st

from llmsim import _native
from llmsim.config import (
    EngineArgs,
    EngineOverrides,
    load_profile,
    profile_names,
    resolve,
    with_model_limits,
)
from llmsim.config.engine.args import stand_in_notes
from llmsim.config.engine.version_rules import VERSION_RULES
from llmsim.config.errors import InputError

OLDER = ("vllm-0.5.4", "vllm-0.6", "vllm-0.8", "vllm-0.10", "vllm-0.11", "vllm-0.11.1", "vllm-0.13")
PROFILES = ("vllm-0.19", *(f"vllm-0.{minor}" for minor in range(24, 34)))
SGLANG = tuple(
    f"sglang-0.5{release}" for release in ("", ".6", ".7", ".10", ".15", ".17", ".20", ".23")
)


def engine(hardware: str = "H100", mem_size: float = 80, **overrides: Any) -> EngineArgs:
    document = small()
    instance(document)["hardware"] = hardware
    instance(document)["npu_mem"]["mem_size"] = mem_size
    return resolve(parsed(document), EngineOverrides(**overrides)).groups[0].engine


def test_the_profiles_that_come_with_the_package() -> None:
    assert set(profile_names()) == {*PROFILES, *OLDER, *SGLANG, "transformers-5"}
    assert engine().engine_profile == "vllm-0.24"
    for name in PROFILES:
        assert load_profile(name).name == name
        assert name.removeprefix("vllm-") in load_profile(name).source
    with pytest.raises(InputError, match=r'engine profile "vlm-0\.25" is not known'):
        load_profile("vlm-0.25")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("vllm-0.25.1", "vllm-0.25"),
        ("vllm-0.32.1", "vllm-0.32"),
        ("vllm-0.20", "vllm-0.19"),
        ("vllm-0.34", "vllm-0.33"),
        ("vllm-0.11.2", "vllm-0.11.1"),
        ("vllm-0.12.0", "vllm-0.11.1"),
        ("vllm-v0.5.4", "vllm-0.5.4"),
        ("vllm-0.1", "vllm-0.5.4"),
        ("sglang-0.5.3", "sglang-0.5"),
        ("sglang-0.5.6.post2", "sglang-0.5.6"),
        ("sglang-0.5.8", "sglang-0.5.7"),
        ("sglang-0.5.12", "sglang-0.5.10"),
        ("sglang-0.5.16.post1", "sglang-0.5.15"),
        ("vllm-0.13.0rc2", "vllm-0.13"),
    ],
)
def test_a_version_without_a_profile_takes_the_nearest(wanted: str, found: str) -> None:
    args = engine(engine_profile=wanted)
    assert (args.engine_profile, args.wanted_profile) == (found, wanted)
    assert wanted in stand_in_notes([args])[0] and found in stand_in_notes([args])[0]
    assert not stand_in_notes([engine(engine_profile=found)])


def test_profiles_name_every_rule_of_the_scheduler() -> None:
    structs = (_native.VersionRules, _native.EncoderRules, _native.OffloadingRules)
    native = {name for struct in structs for name in vars(struct) if not name.startswith("_")}
    assert native <= set(VERSION_RULES)
    named = {rule for profile in PROFILES for rule in load_profile(profile).rules}
    assert named == set(VERSION_RULES)
    assert load_profile("vllm-0.24").rules == ("passed_over_first", "encodes_inputs")


def test_host_time_shows_without_async_scheduling() -> None:
    eleven, older = engine(engine_profile="vllm-0.11"), engine(engine_profile="vllm-0.5.4")
    assert not eleven.async_scheduling
    assert (eleven.host_gap_ps, eleven.host_sequence_ps) == (600_000_000, 27_000_000)
    assert (older.host_gap_ps, older.host_sequence_ps) == (1_500_000_000, 75_000_000)
    ahead = engine(engine_profile="vllm-0.11", async_scheduling=True)
    assert (ahead.host_gap_ps, ahead.host_sequence_ps) == (0, 0)
    given_gap = engine(engine_profile="vllm-0.5.4", host_gap_ns=7)
    assert (given_gap.host_gap_ps, given_gap.host_sequence_ps) == (7_000, 75_000_000)
    behind = engine(async_scheduling=False)
    assert behind.host_gap_ps == 600_000_000
    assert behind.origin["host_gap_ps"] == "engine profile vllm-0.24, synchronous"
    assert engine(async_scheduling=False, scheduler="orca").host_gap_ps == 0


def test_groups_of_several_devices_take_longer_between_steps() -> None:
    """3.1 ms of vLLM 0.11, unless the gap is given or the engine schedules ahead."""

    def of_two(**overrides: Any) -> EngineArgs:
        document = small()
        instance(document).update(num_npus=2, tp_size=2, hardware="H100")
        return resolve(parsed(document), EngineOverrides(**overrides)).groups[0].engine

    found = of_two(engine_profile="vllm-0.11")
    assert found.host_gap_ps == 600_000_000 + 3_100_000_000
    assert found.origin["host_gap_ps"] == "engine profile vllm-0.11, synchronous, several devices"
    assert of_two(engine_profile="vllm-0.6").host_gap_ps == 1_500_000_000
    assert of_two(engine_profile="vllm-0.11", host_gap_ns=7).host_gap_ps == 7_000
    assert of_two(engine_profile="vllm-0.11", async_scheduling=True).host_gap_ps == 0


def test_asynchronous_engines_prepare_steps_since_the_first() -> None:
    """1.6 ms and 27 us for each sequence, as recorded of 0.24; SGLang's loop was never recorded."""

    def prepared(profile: str, **options: Any) -> tuple[int, int]:
        found = engine(engine_profile=profile, **options)
        return found.prepare_ps, found.prepare_sequence_ps

    for name in ("vllm-0.11", "vllm-0.13", "vllm-0.19", "vllm-0.24"):
        assert prepared(name, async_scheduling=True) == (1_600_000_000, 27_000_000)
        assert prepared(name, async_scheduling=False) == (0, 0)
    assert prepared("sglang-0.5", scheduler="sglang") == (0, 0)


def test_releases_between_0_11_1_and_0_13_differ_in_their_kernels_alone() -> None:
    """Their wheels have the same graphs, the same NCCL, and look into a chat template once."""
    twelve, thirteen = load_profile("vllm-0.12.0"), load_profile("vllm-0.13")
    assert twelve.cuda_graphs == thirteen.cuda_graphs != load_profile("vllm-0.11").cuda_graphs
    assert twelve.nccl_release == thirteen.nccl_release == "2.27.5"
    assert twelve.frontend == thirteen.frontend
    assert (twelve.vllm_release, thirteen.vllm_release) == ("0.11", "0.13")
    assert load_profile("vllm-0.11").frontend["chat"].request_ns == 10_500_000


def test_prompts_wait_to_be_tokenised_together() -> None:
    """2 ms (AsyncMicrobatchTokenizer) in vLLM 0.10 to 0.19; harmony's prompts are tokens."""

    def waits(profile: str, endpoint: str) -> int:
        return load_profile(profile).frontend[endpoint].latency_ns

    for profile in ("vllm-0.10", "vllm-0.11", "vllm-0.11.1", "vllm-0.13", "vllm-0.19"):
        assert waits(profile, "chat") == waits(profile, "completions") == 2_000_000
        assert waits(profile, "chat_harmony") == 0
    for profile in ("vllm-0.5.4", "vllm-0.8", "vllm-0.24", "sglang-0.5"):
        assert waits(profile, "completions") == 0


def test_a_profile_starts_from_an_earlier_one() -> None:
    thirteen, base = load_profile("vllm-0.13"), load_profile("vllm-0.19")
    assert thirteen.device_classes == base.device_classes
    assert not thirteen.defaults["async_scheduling"] and base.defaults["async_scheduling"]
    assert load_profile("vllm-0.10").cudagraph_mode == "PIECEWISE"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("hardware", "mem_size", "tokens", "seqs"),
    [
        ("H100", 80, 8192, 1024),
        ("H100", 79.1, 8192, 1024),  # what the driver of an "80 GB" card reports
        ("H200", 141, 8192, 1024),
        ("B200", 180, 8192, 1024),  # the class from 160 GiB on is newer than 0.24
        ("RTXPRO6000", 96, 8192, 1024),
        ("H20", 70, 8192, 1024),
        ("H20", 69.99, 2048, 256),
        ("A100", 80, 2048, 256),
        ("a100-sxm-80gb", 80, 2048, 256),
        ("NVIDIA A100-SXM4-80GB", 79.1, 2048, 256),
        ("A6000", 48, 2048, 256),
        ("RTX4090", 24, 2048, 256),
        ("H100", 40, 2048, 256),
        ("TPU-v6e", 32, 1024, 256),
        ("TPU-v5e", 16, 512, 256),
        ("TPU-v5p", 95, 256, 256),
    ],
)
def test_batch_defaults_by_card(
    profile: str, hardware: str, mem_size: float, tokens: int, seqs: int
) -> None:
    if profile in PROFILES[PROFILES.index("vllm-0.28") :] and mem_size >= 160:
        tokens = 16384
    args = engine(hardware, mem_size, engine_profile=profile)
    assert (args.max_num_batched_tokens, args.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("profile", "tokens", "seqs"), [("vllm-0.24", 8192, 1024), ("vllm-0.33", 2048, 256)]
)
def test_gb10_has_the_memory_of_a_large_card_and_not_its_compute(
    profile: str, tokens: int, seqs: int
) -> None:
    args = engine("GB10", 121.69, engine_profile=profile)
    assert (args.max_num_batched_tokens, args.max_num_seqs) == (tokens, seqs)


def test_other_defaults() -> None:
    old, new = engine(engine_profile="vllm-0.19"), engine()
    assert (old.gpu_memory_utilization, new.gpu_memory_utilization) == (0.9, 0.92)
    for args in (old, new):
        assert (args.block_size, args.watermark, args.long_prefill_token_threshold) == (16, 0.0, 0)
        assert args.enable_chunked_prefill and args.enable_prefix_caching and args.reserve_full_isl
        assert args.async_scheduling
        assert (args.scheduling_policy, args.dtype, args.kv_cache_dtype) == ("fcfs", None, "auto")
        assert (args.api_latency_ps, args.host_gap_ps) == (1_500_000_000, 0)


FULL_GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def test_graph_sizes_of_a_default_engine() -> None:
    assert engine().cuda_graph_sizes == FULL_GRAPHS
    assert len(FULL_GRAPHS) == 51
    assert engine(max_num_seqs=128).cuda_graph_sizes[-1] == 256
    assert engine(max_num_seqs=1).cuda_graph_sizes == (1, 2)
    assert engine(max_num_seqs=4).cuda_graph_sizes == (1, 2, 4, 8)
    # The token budget is captured too, off the grid, in the newer version only.
    assert engine(max_num_seqs=50, max_num_batched_tokens=50).cuda_graph_sizes[-2:] == (48, 50)
    old = engine(max_num_seqs=50, max_num_batched_tokens=50, engine_profile="vllm-0.19")
    assert old.cuda_graph_sizes[-1] == 48


def test_engines_capture_more_sizes_of_gpt_oss() -> None:
    """As a recorded start-up of vLLM 0.24 did, which captured 83 whatever max_num_seqs is."""

    def captured(profile: str, **options: Any) -> tuple[int, ...]:
        args = engine(max_num_seqs=128, engine_profile=profile, **options)
        return with_model_limits(args, 131_072, "g", ["GptOssForCausalLM"]).cuda_graph_sizes

    assert captured("vllm-0.24") == (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
    assert len(captured("vllm-0.24")) == 83
    assert captured("vllm-0.24", max_num_batched_tokens=300)[-2:] == (288, 300)
    largest = {name: captured(name)[-1] for name in ("vllm-0.10", "vllm-0.11", "vllm-0.33")}
    assert largest == {"vllm-0.10": 1024, "vllm-0.11": 992, "vllm-0.33": 1024}
    assert captured("sglang-0.5")[-1] == 128
    assert captured("vllm-0.24", cuda_graph_sizes=(8, 16)) == (8, 16)
    assert captured("vllm-0.24", enforce_eager=True) == ()


def test_given_graph_sizes_are_sorted_and_cut_to_the_budget() -> None:
    args = engine(max_num_batched_tokens=64, cuda_graph_sizes=(64, 8, 8, 128))
    assert args.cuda_graph_sizes == (8, 64)
    assert args.origin["cuda_graph_sizes"] == "command line"


@given(st.integers(1, 5000), st.integers(1, 20000), st.sampled_from(PROFILES))
def test_graph_sizes_ascend_within_their_bounds(seqs: int, tokens: int, profile: str) -> None:
    rule = load_profile(profile).cuda_graphs
    sizes = rule.sizes(seqs, tokens)
    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] <= min(2 * seqs, 512, tokens)
    off_grid = set(sizes) - set(FULL_GRAPHS)
    assert off_grid <= ({tokens, seqs} if rule.captures_sequences else {tokens})


def test_model_limits_without_chunked_prefill() -> None:
    args = engine(enable_chunked_prefill=False)
    limited = with_model_limits(args, 32_768, "nodes[0].instances[0]")
    assert (limited.max_num_batched_tokens, limited.max_model_len) == (32_768, 32_768)
    assert limited.origin["max_num_batched_tokens"].endswith("adjusted to max_model_len")
    given_budget = engine(enable_chunked_prefill=False, max_num_batched_tokens=4096)
    with pytest.raises(
        InputError,
        match=r"nodes\[0\]: max_num_batched_tokens is 4096 \(command line\), below max_model_len",
    ):
        with_model_limits(given_budget, 32_768, "nodes[0]")
    assert with_model_limits(given_budget, 4096, "g").max_num_batched_tokens == 4096


@pytest.mark.parametrize("profile", PROFILES)
def test_both_budgets_hold_the_longest_prompt_without_chunked_prefill(profile: str) -> None:
    """From vLLM 0.28 on a step has a second budget, which is max_num_batched_tokens, too: a prompt
    beyond its default never ran.
    """
    args = engine(engine_profile=profile, enable_chunked_prefill=False)
    limited = with_model_limits(args, 32_768, "nodes[0].instances[0]")
    second = load_profile(profile).second_token_budget
    assert limited.limits.input_budget == (32_768 if second else 0)


def test_model_limits_with_chunked_prefill() -> None:
    args = with_model_limits(engine(), 131_072, "g")
    assert (args.max_num_batched_tokens, args.max_model_len) == (8192, 131_072)
    assert args.origin["max_model_len"] == "model"
    small_model = with_model_limits(engine(max_num_seqs=4), 512, "g")
    assert small_model.max_num_batched_tokens == 2048
    assert with_model_limits(engine(max_model_len=1000), 4096, "g").max_model_len == 1000
    with pytest.raises(
        InputError, match=r"g: max_model_len is 5000 \(command line\), beyond the model's 4096"
    ):
        with_model_limits(engine(max_model_len=5000), 4096, "g")


def test_a_step_of_tensorrt_llm_holds_a_block() -> None:
    chunked = {"scheduler": "tensorrt_llm", "enable_chunked_prefill": True}
    with pytest.raises(InputError, match=r"g: max_num_batched_tokens is 16 .* blocks of 32; raise"):
        with_model_limits(engine(**chunked, max_num_batched_tokens=16), 4096, "g")
    held = engine(**chunked, max_num_batched_tokens=16, block_size=16)
    assert with_model_limits(held, 4096, "g").max_num_batched_tokens == 16
