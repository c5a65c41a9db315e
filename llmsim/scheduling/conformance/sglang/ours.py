"""A case of SGLang's scheduler run by our own."""

from typing import Any

from msgspec import Struct

from llmsim import _native
from llmsim.config.engine.options import SGLANG_POLICIES, SGLANG_RETRACTIONS
from llmsim.config.engine.sglang.host_cache import HOST_WRITES, PREFETCHES, host_pages
from llmsim.config.engine.sglang.state_pool import (
    LAZY,
    answer_interval,
    prompt_interval,
    spare_states,
    states_of_decodes,
)
from llmsim.config.engine.sglang.window_pool import (
    tokens_of_prompts,
    tokens_of_requests,
    tokens_of_transfers,
)
from llmsim.core import PS_PER_US, Int64
from llmsim.scheduling.conformance.cases import (
    Case,
    group_spec,
    run_simulation,
    source,
    speculation,
    step_program,
)
from llmsim.scheduling.conformance.connectors import GroupOfCase
from llmsim.scheduling.conformance.sglang import transfers

EAGLE = ("EAGLE", "EAGLE3")
"""Algorithms whose drafter reads the token behind each of its own."""
PAIR = "pair"
HANDED_OVER = ("decode", PAIR)
"""Cases in which a decode server has its KV from elsewhere."""
ROLES = {
    None: _native.Role.BOTH,
    "prefill": _native.Role.PREFILL,
    "decode": _native.Role.DECODE,
}
STORAGE_PS = 300 * PS_PER_US + 1
"""Each operation of storage takes this, and `storage_ps` for each token; nothing else ends with it.
"""
STORAGE_PAGE_BYTES = 1000
NEVER_PS = 1 << 60
"""When what one server of a pair waits for comes from another that stands still."""
COPY_PS = 200 * PS_PER_US
"""A copy between the device and the host takes this, and `hicache_copy_ps` for each token."""


def native_case(case: Case) -> Case:
    """The case in the form that `run_case` takes: pages as blocks, and the step's bounds."""
    config = case["config"]
    page, chunk = config["page_size"], config["chunked_prefill_size"]
    longest = max(sum(length for _, length in one["segments"]) for one in case["requests"])
    most = chunk if chunk > 0 else config["max_prefill_tokens"] + config["context_length"] + longest
    translated = {
        "num_gpu_blocks": config["max_total_tokens"] // page + 1,
        "block_size": page,
        "max_num_seqs": config["max_running_requests"],
        "max_model_len": config["context_length"],
        "max_num_batched_tokens": most,
        "enable_prefix_caching": caches(config),
        "enable_chunked_prefill": chunk > 0,
        "async_scheduling": not config["disable_overlap_schedule"],
        "ends_with_stop_token": config["ends_with_stop_token"],
    }
    width = config.get("speculative_num_draft_tokens", 1)
    resolved = {
        "max_num_scheduled_tokens": max(most, config["max_running_requests"]),
        "max_step_tokens": max(most, config["max_running_requests"] * width),
        "max_concurrent_batches": _batches_in_flight(config),
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": config.get("speculative_num_steps", 0),
        "num_lookahead_tokens": 0,
        "use_eagle": config.get("speculative_algorithm") in EAGLE,
    }
    drafts = {"acceptance": case["acceptance"]} if "acceptance" in case else {}
    return {"config": translated, "resolved": resolved, "requests": case["requests"], **drafts}


def caches(config: Case) -> bool:
    """Whether there is a radix cache, which a decode server needs to be told."""
    if config.get("disaggregation_mode") == "decode":
        return bool(config.get("disaggregation_decode_enable_radix_cache", False))
    return not config["disable_radix_cache"]


def keeps_states(config: Case) -> bool:
    """Whether some layers keep a state for a whole sequence."""
    return bool(config.get("mamba_chunk_size", 0) > 0)


def spare_states_of(config: Case) -> int:
    """Slots for states that each running request has beside its own."""
    strategy = config["mamba_radix_cache_strategy"]
    if not caches(config) or strategy == "no_buffer":
        return 0
    return spare_states(strategy, overlaps=not config["disable_overlap_schedule"])


def _batches_in_flight(config: Case) -> int:
    stages: int = config.get("pp_size", 1)
    if stages > 1:
        return stages
    return 1 if config["disable_overlap_schedule"] else 2


def acceptance(case: Case) -> "_native.Acceptance":
    """Which drafts of a case hold."""
    return speculation(native_case(case)).acceptance


def our_steps(case: Case) -> list[Case]:
    """The steps of the native scheduler `sglang`, those of a prefill server first."""
    return our_run(case).steps


class OurRun(Struct, frozen=True):
    """Our steps of a case, up to where nobody runs what is left, and its servers as cases of their
    own: each with the times that the others' steps give it.
    """

    steps: list[Case]
    servers: list[Case]


def our_run(case: Case) -> OurRun:
    """Runs a case; where nobody runs what is left, the last step says so."""
    sides = servers(case["config"])
    ran = run_simulation(case, _simulation(case, sides), [index for index, _ in sides])
    steps = [step for group in ran.groups for step in group]
    if ran.stalled is not None:
        ended = [step for step in steps if step["end_ps"] >= 0]
        steps = [*ended, {"failed": str(ran.stalled)}]
    if case["config"].get("disaggregation_mode") not in HANDED_OVER:
        return OurRun(steps, [case])
    landed, reserved = (ran.transfers[name] for name in ("kv_landed_ps", "kv_reserved_ps"))
    times = {"landed_ps": _later(landed, 0), "told_ps": _later(reserved, transfers.MESSAGE_PS)}
    configs = {
        id(config): config for _, config in sides
    }.values()  # that of a server's ranks is one
    return OurRun(steps, [case | times | {"config": config} for config in configs])


def _later(times_ps: Int64, delay_ps: int) -> list[int]:
    """So much later than each time; a time of -1 never comes."""
    return [at + delay_ps if at >= 0 else NEVER_PS for at in times_ps.tolist()]


def servers(config: Case) -> list[tuple[int, Case]]:
    """The groups under test: the index of each, and its configuration."""
    mode, ranks = config.get("disaggregation_mode"), config.get("dp_size", 1)
    first, second = range(ranks), range(ranks, 2 * ranks)
    if mode == PAIR:
        own = config["prefill_server"]
        prefill = config | own | {"disaggregation_mode": "prefill"}
        decode = config | {"disaggregation_mode": "decode"}
        return [*((rank, prefill) for rank in first), *((rank, decode) for rank in second)]
    return [(rank, config) for rank in (second if mode == "decode" else first)]


def _simulation(case: Case, sides: list[tuple[int, Case]]) -> "_native.SimulationConfig":
    config = case["config"]
    specs = [_group(case | {"config": own}, index) for index, own in sides]
    ranks = config.get("dp_size", 1)
    requests = source(native_case(case), ranks)
    match config.get("disaggregation_mode"):
        case "prefill":
            return transfers.receiver(config["transfer_ps"])(requests, specs)
        case "decode":
            return transfers.sender(config["transfer_ps"])(requests, specs)
        case "pair":
            latencies = (config["transfer_ps"], transfers.MESSAGE_PS)
            both = [range(ranks), range(ranks, 2 * ranks)]
            return transfers.between(requests, specs, latencies, both, push=True)
    return _native.SimulationConfig(requests, specs, lockstep=transfers.lockstep(range(ranks)))


def _group(case: Case, index: int) -> "_native.GroupSpec":
    config, native = case["config"], native_case(case)
    role = ROLES[config.get("disaggregation_mode")]

    def make(spec: Any, scheduler: Any, program: Any) -> "_native.GroupSpec":
        scheduler.scheduler = "sglang"
        scheduler.output_length_known = not config["ends_with_stop_token"]
        if config.get("sliding_window", 0) > 0:
            scheduler.window_pool = _window_pool(config)
        if keeps_states(config):
            scheduler.state_pool = _state_pool(config)
        if config.get("enable_hierarchical_cache", False):
            scheduler.host_cache = _host_cache(config)
        scheduler.stages = scheduler.micro_batches = config.get("pp_size", 1)
        scheduler.parameters = _parameters(config)
        if config.get("dp_size", 1) > 1:  # each rank has requests of its own
            spec.model = index % config["dp_size"]
            program = step_program(native, config["dp_size"])
        return _native.GroupSpec(spec, scheduler, program, record_schedule=True)

    return group_spec(native, index, GroupOfCase(role, native["config"]["num_gpu_blocks"]), make)


def _parameters(config: Case) -> dict[str, int]:
    return {
        "new_tokens": config["clip_max_new_tokens"],
        "max_prefill_tokens": config["max_prefill_tokens"],
        "overlap": int(not config["disable_overlap_schedule"]),
        "mixed_chunk": int(config["enable_mixed_chunk"] and config["chunked_prefill_size"] > 0),
        "policy": SGLANG_POLICIES.index(config["schedule_policy"]),
        "priorities": int(config["enable_priority_scheduling"]),
        "low_priorities_first": int(config["schedule_low_priority_values_first"]),
        "preemption": int(not config["disable_priority_preemption"]),
        "preemption_threshold": config["priority_scheduling_preemption_threshold"],
        "retraction_policy": SGLANG_RETRACTIONS.index(config["retraction_policy"]),
        "eagle_topk": config.get("speculative_eagle_topk", 1),
        "draft_tokens": config.get("speculative_num_draft_tokens", 0),
        "reserved_tokens": config.get("num_reserved_decode_tokens", 512),
        "conservativeness": 300 if config.get("dp_size", 1) > 1 else 1000,
        "recv_interval": config.get("scheduler_recv_interval", 1),
    }


def _window_pool(config: Case) -> "_native.WindowPoolConfig":
    """The pool that SGLang makes for layers with a window beside `max_total_tokens`."""
    native = _native.WindowPoolConfig()
    native.window = config["sliding_window"]
    tokens = window_tokens(config)
    native.pages = tokens // config["page_size"]
    return native


def _state_pool(config: Case) -> "_native.StatePoolConfig":
    chunk, page = config["mamba_chunk_size"], config["page_size"]
    native = _native.StatePoolConfig()
    native.slots = states_of(config)
    native.spare = spare_states_of(config)
    native.lazy = config["mamba_radix_cache_strategy"] == LAZY
    if config.get("speculative_algorithm") is not None:
        native.verified = config["speculative_num_draft_tokens"]
    native.prompt_interval = prompt_interval(chunk, page)
    native.answer_interval = answer_interval(chunk, page, config["mamba_track_interval"])
    return native


def states_of(config: Case) -> int:
    """Slots of the pool that SGLang makes for layers that keep states."""
    given: int = config["max_mamba_cache_size"]
    if config.get("disaggregation_mode") != "decode":
        return given
    return states_of_decodes(config["max_running_requests"], spare_states_of(config), given)


def window_tokens(config: Case) -> int:
    """Tokens of the pool (SGLang 0.5.23: `HybridSWAPoolConfigurator`, and without a radix cache
    `SWARequestCapPoolConfigurator`).
    """
    page: int = config["page_size"]
    most: int = config["max_total_tokens"]
    chunk: int = config["chunked_prefill_size"]
    decodes_alone = config.get("disaggregation_mode") == "decode"
    if caches(config) or (chunk <= 0 and not decodes_alone):
        return int(most * config["swa_full_tokens_ratio"]) // page * page
    window, requests = config["sliding_window"], config["max_running_requests"]
    if decodes_alone:
        beside = tokens_of_transfers(window, page, requests)
    else:
        in_flight = 1 if config["disable_overlap_schedule"] else 2
        beside = tokens_of_prompts(page, in_flight * chunk)
    return min(tokens_of_requests(window, page, requests, beside_tokens=beside), most)


def _host_cache(config: Case) -> "_native.HostCacheConfig":
    """Pages of the host pool as SGLang counts them; all layers are loaded before the step."""
    native = _native.HostCacheConfig()
    host_tokens = int(config["max_total_tokens"] * config["hicache_ratio"])
    native.pages = host_pages(host_tokens, config["page_size"])
    native.write = HOST_WRITES[config["hicache_write_policy"]]
    native.copy_latency_ps = COPY_PS
    copy_ps = config["hicache_copy_ps"]
    native.write_ps_per_token = native.load_ps_per_token = copy_ps
    native.write_ps_per_window_token = native.load_ps_per_window_token = copy_ps
    native.write_ps_per_state = native.load_ps_per_state = copy_ps
    if config.get("sliding_window", 0) > 0:
        host_windows = int(window_tokens(config) * config["hicache_ratio"])
        native.window_pages = host_pages(host_windows, config["page_size"])
    if keeps_states(config):
        native.states = host_pages(int(states_of(config) * config["hicache_ratio"]), 1)
    if config.get("hicache_storage_backend") is not None:
        native.storage = _host_storage(config)
    return native


def _host_storage(config: Case) -> "_native.HostStorageConfig":
    native = _native.HostStorageConfig()
    native.prefetch_threshold = config["prefetch_threshold"]
    native.prefetch = PREFETCHES[config["hicache_storage_prefetch_policy"]]
    native.timeout_ps = config["storage_timeout_ps"]
    native.timeout_per_page_ps = config["storage_timeout_per_page_ps"]
    native.retry_passes = config["hicache_storage_prefetch_retry_poll_interval"]
    native.most_retries = config["hicache_storage_prefetch_retry_max_attempts"]
    native.query_latency_ps = native.read_latency_ps = native.write_latency_ps = STORAGE_PS
    native.read_ps_per_token = native.write_ps_per_token = config["storage_ps"]
    native.capacity_bytes = config["storage_pages"] * STORAGE_PAGE_BYTES
    native.page_bytes = STORAGE_PAGE_BYTES
    return native
