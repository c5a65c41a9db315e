"""The command line of SGLang's server for an instance of a cluster file."""

from collections.abc import Mapping, Sequence

from llmsim import _native
from llmsim.config.engine.options import (
    HICACHE_WRITE_POLICIES,
    SGLANG_POLICIES,
    SGLANG_RETRACTIONS,
)
from llmsim.config.errors import InputError, NotYetError
from llmsim.emulation.in_engine.sglang.transfers import BACKEND
from llmsim.lowering import LoweredGroup

TOKENS_ALONE = ("--skip-tokenizer-init", "--incremental-streaming-output")
"""Flags of a server that takes and gives token ids, each once."""
_PERMILLE, _OF_RANKS = 1000, 300
"""What conservativeness is a share of: with data-parallel attention, SGLang takes 0.3 of its own.
"""
_OF_THE_RUN = (
    "--dp-size",
    "--enable-dp-attention",
    "--attn-dp-size",
    "--pp-",
    "--tp-size",
    "--tensor-parallel-size",
    "--speculative-",
    "--enable-hierarchical-cache",
    "--hicache-",
    "--enable-priority-scheduling",
    "--schedule-low-priority-values-first",
    "--disable-priority-preemption",
    "--priority-scheduling-",
    "--swa-full-tokens-ratio",
    "--max-mamba-cache-size",
    "--mamba-",
)
"""Flags, and beginnings of flags, of what the cluster file or an option of `llmsim run` says."""
_NOT_EMULATED = ("--ep-size", "--nnodes", "--disaggregation-", "--enable-lora", "--tokenizer-work")
"""Flags, and beginnings of flags, of what `llmsim emulate sglang` does not run."""
ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "EAGLE", "draft_model": "STANDALONE"}
"""SGLang's names of methods; it runs modules for multi-token prediction as EAGLE."""


def server_flags(group: LoweredGroup, model: str, ranks: int = 1) -> list[str]:
    """The engine's options as flags; the server has one process for all tensor-parallel ranks of
    the group, and one for each of so many equal groups in lock-step (data-parallel attention). The
    folder `model` stands for a drafter's, too.
    """
    engine, scheduler = group.engine, group.scheduler
    assert scheduler is not None, "engine_stages looked"
    kv, parameters = scheduler.kv, scheduler.parameters
    chunk = ranks * scheduler.max_num_scheduled_tokens if engine.enable_chunked_prefill else -1
    conservativeness = parameters["conservativeness"] / (_PERMILLE if ranks == 1 else _OF_RANKS)
    values: dict[str, object] = {
        "--served-model-name": group.info.model_name,
        "--load-format": "dummy",
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--mem-fraction-static": 0.8,
        "--random-seed": 1,
        "--log-level": "warning",
        "--page-size": kv.block_size,
        "--max-total-tokens": (kv.num_blocks - 1) * kv.block_size,
        "--context-length": kv.max_model_len,
        "--chunked-prefill-size": chunk,
        "--max-prefill-tokens": parameters["max_prefill_tokens"],
        "--max-running-requests": ranks * engine.max_num_seqs,
        "--schedule-policy": SGLANG_POLICIES[parameters["policy"]],
        "--retraction-policy": SGLANG_RETRACTIONS[parameters["retraction_policy"]],
        "--schedule-conservativeness": conservativeness,
        "--scheduler-recv-interval": parameters["recv_interval"],
        **_micro_batches(group),
        **({"--tp-size": ranks, "--dp-size": ranks} if ranks > 1 else {}),
        **_drafts(group, model),
        **_pools(scheduler),
    }
    flags = ["--disable-cuda-graph", "--skip-server-warmup"]
    for is_so, flag in (
        (not engine.enable_prefix_caching and not _decodes(group), "--disable-radix-cache"),
        (not parameters["overlap"] or group.layout.pp > 1, "--disable-overlap-schedule"),
        (bool(parameters["mixed_chunk"]), "--enable-mixed-chunk"),
        (ranks > 1, "--enable-dp-attention"),
    ):
        if is_so:
            flags.append(flag)
    flags += [*_priorities(parameters), *_host_cache(group), *_role(group)]
    return [*(str(part) for pair in values.items() for part in pair), *flags]


def _decodes(group: LoweredGroup) -> bool:
    return group.native.role == _native.Role.DECODE


def _role(group: LoweredGroup) -> list[str]:
    """Of a prefill or decode server, whose KV moves over our links whatever backend it names."""
    if group.native.role == _native.Role.BOTH:
        return []
    mode = "decode" if _decodes(group) else "prefill"
    flags = ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", BACKEND]
    if not _decodes(group):
        return flags
    assert group.scheduler is not None, "engine_stages looked"
    reserved = group.scheduler.parameters["reserved_tokens"]
    flags += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    flags += ["--num-reserved-decode-tokens", str(reserved)]
    if group.engine.enable_prefix_caching:
        flags.append("--disaggregation-decode-enable-radix-cache")
    return flags


def _micro_batches(group: LoweredGroup) -> dict[str, object]:
    """Of pipeline stages, which share the requests of the one process."""
    stages = group.layout.pp
    if stages == 1:
        return {}
    return {"--pp-max-micro-batch-size": max(group.engine.max_num_seqs // stages, 1)}


def _drafts(group: LoweredGroup, model: str) -> dict[str, object]:
    speculation, scheduler = group.engine.speculation, group.scheduler
    if speculation is None or scheduler is None:
        return {}
    return {
        "--speculative-algorithm": ALGORITHMS[speculation.method],
        "--speculative-draft-model-path": model,
        "--speculative-num-steps": speculation.tokens,
        "--speculative-eagle-topk": speculation.branches,
        "--speculative-num-draft-tokens": speculation.verified,
    }


def _pools(scheduler: "_native.SchedulerConfig") -> dict[str, object]:
    """Of layers with a window, and of those that keep states."""
    values: dict[str, object] = {}
    kv, windows, states = scheduler.kv, scheduler.window_pool, scheduler.state_pool
    if windows.window > 0:
        tokens = windows.pages * kv.block_size
        # Half a token more: SGLang rounds down.
        values["--swa-full-tokens-ratio"] = (tokens + 0.5) / ((kv.num_blocks - 1) * kv.block_size)
    if states.slots > 0:
        spares = "extra_buffer_lazy" if states.lazy else "extra_buffer"
        values["--max-mamba-cache-size"] = states.slots
        values["--mamba-radix-cache-strategy"] = spares if states.spare > 0 else "no_buffer"
        values["--mamba-track-interval"] = states.answer_interval
    return values


def _host_cache(group: LoweredGroup) -> list[str]:
    """HiCache, whose host pool has a page more than SGLang counts by its ratio."""
    engine, scheduler = group.engine, group.scheduler
    assert scheduler is not None, "engine_stages looked"
    cache, kv = scheduler.host_cache, scheduler.kv
    if cache.pages == 0:
        return []
    tokens = (cache.pages - 1) * kv.block_size
    ratio = (tokens + 0.5) / ((kv.num_blocks - 1) * kv.block_size)
    policy = engine.hicache_write_policy or HICACHE_WRITE_POLICIES[0]
    flags = ["--enable-hierarchical-cache", "--hicache-ratio", str(ratio)]
    return [*flags, "--hicache-write-policy", policy]


def _priorities(parameters: Mapping[str, int]) -> list[str]:
    if not parameters["priorities"]:
        return []
    flags = ["--enable-priority-scheduling"]
    if parameters["low_priorities_first"]:
        flags.append("--schedule-low-priority-values-first")
    if not parameters["preemption"]:
        flags.append("--disable-priority-preemption")
    threshold = parameters["preemption_threshold"]
    return [*flags, "--priority-scheduling-preemption-threshold", str(threshold)]


def check_words(group: LoweredGroup, engine_args: Sequence[str], ranks: int) -> None:
    """Options of the server itself neither repeat nor contradict those that are derived."""
    ours = {word for word in server_flags(group, "", ranks) if word.startswith("--")}
    ours |= {"--model-path", "--model", "--host", "--port", *TOKENS_ALONE}
    for word in engine_args:
        flag = word.split("=")[0]
        if flag.startswith(_NOT_EMULATED):
            raise NotYetError(
                f"--engine-args {flag}: `llmsim emulate sglang` does not run this; leave it out"
            )
        if flag in ours or flag.startswith(_OF_THE_RUN):
            raise InputError(
                f"--engine-args {flag}: `llmsim emulate` gives the server this option itself, as "
                "the cluster file and the options of `llmsim run` say; change it there"
            )
