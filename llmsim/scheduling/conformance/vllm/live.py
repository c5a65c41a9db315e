"""The installed vLLM's own engine core with the options of a case: your version, exactly.

Needs the extra `llmsim[vllm]`; the model is replaced by known token ids, so nothing but scheduling
runs.
"""

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llmsim import _native
from llmsim.config.engine.profile import PROVEN, EngineProfile, load_profile, nearest_profile
from llmsim.config.errors import InputError
from llmsim.model.memory.hybrid_groups import KEEPS_STATE
from llmsim.scheduling.conformance.cases import (
    Case,
    by_arrival,
    images,
    output_token,
    prompt_tokens,
    speculation,
)
from llmsim.scheduling.conformance.connectors import (
    FAIL,
    HANDOVER,
    OFFLOADING,
    GroupOfCase,
    groups_of,
    load_failures,
    offloading_extra,
)
from llmsim.scheduling.conformance.vllm.known_model import KnownModel
from llmsim.scheduling.conformance.vllm.platform import prepare, prepare_runner, write_model
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank, RankGroup
from llmsim.scheduling.conformance.vllm.ranks.loop import RankLoop
from llmsim.scheduling.conformance.vllm.ranks.scheduler import VllmRank
from llmsim.scheduling.conformance.vllm.request import LiveRequest, prompt_alone
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler


def installed_version() -> str | None:
    """The version of the vLLM that would be used, or None."""
    try:
        from importlib.metadata import PackageNotFoundError, version

        return version("vllm")
    except PackageNotFoundError:
        return None


def engine_profile_of(version: str) -> str:
    """The engine profile with an installed vLLM's rules, or the nearest to them; InputError for a
    release before the first that was proven.
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    first = tuple(int(part) for part in PROVEN[0].split("."))
    if release is None or (int(release[1]), int(release[2])) < first:
        raise InputError(
            f"vLLM {version} is installed, but this version of llmsim runs the schedulers of vLLM "
            f"{PROVEN[0]} and later; install {PROVEN[-1]}, as in pip install vllm=={PROVEN[-1]}.0"
        )
    name = nearest_profile(f"vllm-{release[0]}", [f"vllm-{one}" for one in PROVEN])
    assert name is not None
    return name


def resolve(case: Case) -> Any:
    """An engine core of vLLM for a case's `config`: `engine_core.SimulatedCore`, or
    `ranks.core.SimulatedRank`.

    Raises InputError for a release of vLLM that does not run here, and with vLLM's reason when it
    refuses the options.
    """
    engine_profile_of(installed_version() or "none")
    prepare()
    config = case["config"]
    options: dict[str, Any] = {
        "model": "",
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "disable_log_stats": True,
        "max_num_seqs": config["max_num_seqs"],
        "max_num_batched_tokens": config["max_num_batched_tokens"],
        "max_model_len": config["max_model_len"],
        "block_size": config["block_size"],
        "enable_prefix_caching": config["enable_prefix_caching"],
        "enable_chunked_prefill": config["enable_chunked_prefill"],
        "async_scheduling": config["async_scheduling"],
        "long_prefill_token_threshold": config.get("long_prefill_token_threshold", 0),
        "scheduling_policy": config.get("policy", "fcfs"),
        "watermark": config.get("watermark", 0.0),
        "scheduler_reserve_full_isl": config.get("scheduler_reserve_full_isl", True),
    }
    if config.get("long_prefill_token_threshold_adaptive"):
        options["long_prefill_token_threshold_adaptive"] = True
    if config.get("max_num_active_seqs"):
        options["max_num_active_seqs"] = config["max_num_active_seqs"]
    if "max_loras" in config:
        options |= {"enable_lora": True, "max_loras": config["max_loras"]}
    if "connector" in config:
        options["kv_transfer_config"] = _transfer_config(
            config.get("role", ""), config["connector"]
        )
    prepare_runner(config.get("use_v2_model_runner", False))
    with tempfile.TemporaryDirectory() as folder:
        options["model"] = write_model(Path(folder), config["max_model_len"])
        vllm_config = _configured(options, config)
        vllm_config.cache_config.num_gpu_blocks = config["num_gpu_blocks"]
        _set_afterwards(vllm_config, config)
        core = _core(vllm_config, _kv_cache_config(vllm_config, config))
        _set_encoder(core.scheduler, config)
        return core


def _core(vllm_config: Any, kv_cache_config: Any) -> Any:
    from llmsim.scheduling.conformance.vllm.engine_core import SimulatedCore

    if vllm_config.parallel_config.data_parallel_size == 1:
        return SimulatedCore(vllm_config, kv_cache_config)
    from llmsim.scheduling.conformance.vllm.ranks.core import SimulatedRank

    return SimulatedRank(vllm_config, kv_cache_config)


def scheduler_of(
    core: Any,
    requests: Sequence[LiveRequest],
    speculation: Any,
    failures: "_native.LoadFailuresConfig | None" = None,
) -> VllmScheduler:
    """An engine core behind our loop, which answers these requests; `speculation` is the native
    `SpeculationConfig`.
    """
    from llmsim.scheduling.conformance.vllm.engine_core import EngineLoop

    model = KnownModel(requests, speculation, schedules_ahead=core.async_scheduling)
    return VllmScheduler(requests, core, EngineLoop(core, model), failures)


def rank_of(
    core: Any,
    requests: Sequence[LiveRequest],
    speculation: Any,
    failures: "_native.LoadFailuresConfig | None",
    rank: Rank,
) -> VllmRank:
    """The same of a data-parallel rank's engine core."""
    model = KnownModel(requests, speculation, schedules_ahead=core.async_scheduling)
    return VllmRank(requests, core, RankLoop(core, model, rank), failures)


def _set_afterwards(vllm_config: Any, config: dict[str, Any]) -> None:
    """What no option of vLLM's engine arguments sets, or what they would refuse here."""
    if "prefix_match_unit" in config:
        vllm_config.cache_config.prefix_match_unit = config["prefix_match_unit"]
    limits = vllm_config.scheduler_config
    most = limits.max_num_scheduled_tokens or config["max_num_batched_tokens"]
    limits.max_num_scheduled_tokens = min(most, config.get("max_num_scheduled_tokens", most))
    limits.prefill_schedule_interval = config.get("prefill_schedule_interval", 1)
    # Asked for with the other options, they would want an executor with as many workers.
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size"):
        setattr(parallel, name, config.get(name, 1))
    if "data_parallel_size" in config:
        _be_rank(vllm_config, config)


def _be_rank(vllm_config: Any, config: dict[str, Any]) -> None:
    """It is one of several data-parallel ranks that share experts, which the small model lacks."""
    parallel = vllm_config.parallel_config
    parallel.data_parallel_size = size = config["data_parallel_size"]
    parallel.data_parallel_rank = parallel.data_parallel_index = config["data_parallel_rank"]
    parallel.data_parallel_rank_local = config["data_parallel_rank"]
    vllm_config.model_config.model_arch_config.num_experts = size
    if hasattr(parallel, "dp_sync_interval"):  # from 0.30 on
        parallel.dp_sync_interval = config["dp_sync_interval"]


def _transfer_config(role: str, connector: dict[str, Any]) -> Any:
    """Both sides of a hand-over, of `role` prefill and decode, are taken to have the kv_role that
    NIXL's pages give them, and that of vLLM's own offloading is the same.
    """
    from vllm.config import KVTransferConfig

    if connector.get("kind") == OFFLOADING:
        return KVTransferConfig(
            kv_connector="TimedOffloading",
            kv_connector_module_path="llmsim.scheduling.conformance.vllm.offloading",
            kv_role="kv_both",
            kv_connector_extra_config=offloading_extra(connector),
        )
    return KVTransferConfig(
        kv_connector="SimulatedConnector",
        kv_connector_module_path="llmsim.scheduling.conformance.vllm.connector",
        kv_role="kv_both",
        kv_load_failure_policy=connector.get("load_failures", {}).get("policy", FAIL),
        kv_connector_extra_config={
            "remote": role == "decode",
            "keeps_finished": role == "prefill",
            "all_but_last": connector.get("state_bytes", 0) > 0,
        },
    )


def _set_encoder(scheduler: Any, config: dict[str, Any]) -> None:
    """The budgets of an encoder, which the model that vLLM is configured with does not have."""
    if "encoder_tokens" not in config:
        return
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    scheduler.max_num_encoder_input_tokens = config["encoder_tokens"]
    scheduler.encoder_cache_manager = EncoderCacheManager(config["encoder_cache_tokens"])
    whole = config.get("disable_chunked_mm_input", False)
    scheduler.scheduler_config.disable_chunked_mm_input = whole


def _configured(options: dict[str, Any], config: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    asked = dict(config.get("speculative", {}))
    modules = asked.pop(_MODULES, 1)
    if asked:
        model = {} if asked["method"] == "ngram" else {"model": options["model"]}
        options["speculative_config"] = {**asked, **model}
    try:
        made = EngineArgs(**options).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"vLLM {installed_version()} refuses the options {config}: {error}"
        ) from None
    if modules > 1 and hasattr(made, "num_prefill_lookahead_tokens"):  # 0.33
        # The small model has no such head, of which the scheduler only asks for this number.
        made.speculative_config.method = "mtp"
        setattr(made.speculative_config.draft_model_config.hf_config, _MODULES, modules)
    return made


_MODULES = "num_nextn_predict_layers"
"""Modules of a head for multi-token prediction, as the configuration of a model says it."""


def _tables(config: dict[str, Any]) -> list[tuple[int, int]]:
    """What each table of blocks sees, and the tokens in its blocks."""
    windows: list[int] = config.get("kv_windows", [0])
    sizes = config.get("kv_block_sizes") or [config["block_size"]] * len(windows)
    return list(zip(windows, sizes, strict=True))


def _kv_cache_config(vllm_config: Any, config: dict[str, Any]) -> Any:
    """The blocks of a case in vLLM's form: tables for windows (`model.memory.hybrid_groups`), of
    one layer each.
    """
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    tables, alignment = _tables(config), config.get("checkpoint_alignment", 0)
    states = any(window == KEEPS_STATE for window, _ in tables)
    if vllm_config.cache_config.enable_prefix_caching and states:
        vllm_config.cache_config.mamba_cache_mode = "align"
    groups = [
        KVCacheGroupSpec([f"layer.{i}"], layer_spec(vllm_config, window, alignment, size))
        for i, (window, size) in enumerate(tables)
    ]
    made = KVCacheConfig(
        num_blocks=config["num_gpu_blocks"],
        kv_cache_tensors=[_tensor_of(group, config["num_gpu_blocks"]) for group in groups],
        kv_cache_groups=groups,
    )
    retention = config.get("prefix_cache_retention_interval", -1)
    if retention >= 0 and hasattr(made, "prefix_cache_retention_interval"):
        made.prefix_cache_retention_interval = retention
    return made


def _tensor_of(group: Any, num_blocks: int) -> Any:
    """The memory of a table, by which offloading knows the size of a block."""
    from vllm.v1.kv_cache_interface import KVCacheTensor

    page = group.kv_cache_spec.page_size_bytes
    size = page * num_blocks
    try:
        return KVCacheTensor(size=size, shared_by=group.layer_names)
    except TypeError:  # from 0.29 on
        return KVCacheTensor(
            size=size, layers=group.layer_names, layer_stride=size, block_stride=page
        )


def layer_spec(vllm_config: Any, window: int, alignment: int = 0, block_size: int = 0) -> Any:
    """What vLLM's cache is told of a layer that sees so many tokens, attends in chunks of so many
    (a negative number), sees everything (0), or keeps a state (-1), which its kernel also leaves
    inside a chunk at multiples of `alignment` tokens. Without a `block_size` its blocks have the
    engine's.
    """
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if window == KEEPS_STATE:
        page = layer_spec(vllm_config, 0).page_size_bytes
        one = {"shapes": ((1,),), "dtypes": (model.dtype,), "page_size_padded": page}
        if vllm_config.cache_config.mamba_cache_mode != "align":
            return MambaSpec(block_size=model.max_model_len, **one)
        if alignment:
            one |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": alignment}
        size = vllm_config.cache_config.block_size
        return MambaSpec(block_size=size, mamba_cache_mode="align", **one)
    sizes = {
        "block_size": block_size or vllm_config.cache_config.block_size,
        "num_kv_heads": model.get_num_kv_heads(parallel),
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
    }
    if not window:
        return FullAttentionSpec(**sizes)
    if window < 0:
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=-window)
    behind = max(0, getattr(vllm_config, "num_prefill_lookahead_tokens", 0) - 1)
    more = {"extra_retained_tokens": behind} if behind else {}
    return SlidingWindowSpec(**sizes, sliding_window=window, **more)


def resolved_part(vllm_config: Any, scheduler: Any) -> Case:
    """What the engine made of the options, in the form of a recorded case."""
    drafts = vllm_config.speculative_config
    return {
        "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
        "max_concurrent_batches": vllm_config.max_concurrent_batches,
        "use_v2_model_runner": vllm_config.use_v2_model_runner,
        "num_lookahead_tokens": scheduler.num_lookahead_tokens,
        "num_spec_tokens": scheduler.num_spec_tokens,
        "tokens_by_sequences": scheduler.dynamic_sd_lookup or [],
        "use_eagle": scheduler.use_eagle,
        "num_hash_lookahead_tokens": getattr(vllm_config, "num_hash_lookahead_tokens", 0),
        "num_prefill_lookahead_tokens": _prompt_lookahead(scheduler),
        "reserve_full_isl": scheduler.scheduler_reserve_full_isl,
        "watermark": vllm_config.scheduler_config.watermark,
        "draft_slots": 0 if drafts is None else drafts.max_num_new_slots_for_drafting,
        "engine_profile": engine_profile_of(installed_version() or "none"),
        "prefix_cache_retention_interval": _retention(scheduler.kv_cache_config),
    }


def _prompt_lookahead(scheduler: Any) -> int:
    """Tokens behind a part of a prompt that the drafter reads; releases before 0.28 have no name
    for it.
    """
    return int(getattr(scheduler, "num_prefill_lookahead", scheduler.use_eagle))


def _retention(kv_config: Any) -> int:
    """As our option; releases before 0.33 have none."""
    interval = getattr(kv_config, "prefix_cache_retention_interval", None)
    return -1 if interval is None else int(interval)


def _without_what_it_lacks(case: Case) -> Case:
    """The case for a release of whose rules we know no cached states, slots of adapters or images:
    without these.
    """
    profile = load_profile(engine_profile_of(installed_version() or "none"))
    config = dict(case["config"])
    if "max_loras" not in profile.options:
        slots = config.pop("max_loras", 0)
        if slots:
            case = _with_all(case, lora=0)
    if not profile.schedules_by("encodes_inputs"):
        budget = config.pop("encoder_tokens", 0)
        if budget:
            case = _with_all(case, images=[])
    caches_states = config["enable_prefix_caching"] and "kv_windows" in config
    if caches_states and not profile.schedules_by("caches_states"):
        config["kv_windows"] = [one for one in config["kv_windows"] if one != KEEPS_STATE]
    if "prefix_match_unit" not in profile.options:
        config.pop("prefix_match_unit", None)
    if not profile.schedules_by("saves_inside_chunks"):
        config.pop("checkpoint_alignment", None)
    if "connector" in config:
        config["connector"] = _connector_for(profile, case)
    by_ngram = config.get("speculative", {}).get("method") == "ngram"
    if by_ngram and not profile.v2_runner.drafts_ahead_by("ngram"):
        config |= {"use_v2_model_runner": False, "async_scheduling": False}
    return {**case, "config": config}


def _with_all(case: Case, **fields: Any) -> Case:
    """The case with these fields in each of its requests."""
    return {**case, "requests": [one | fields for one in case["requests"]]}


_FIXED_SYNC_INTERVAL = 32
"""Rounds from one agreement of the ranks to the next where no option says so (up to 0.29)."""


def _connector_for(profile: EngineProfile, case: Case) -> dict[str, Any]:
    """The connector of a case as the release has it.

    Loads within a step are an option of 0.33. We do not follow 0.24 where a prompt whose last
    step is in flight loses its blocks, since it then hands over what it has given back: there,
    no prompt is preempted. Nor do we know which loads fail where layers keep states, unless the
    release tells.
    """
    connector: dict[str, Any] = dict(case["config"]["connector"])
    if connector.get("kind") == HANDOVER and not profile.schedules_by("delivers_kv"):
        size = case["config"]["block_size"]
        blocks = (-(-len(prompt_tokens(one)) // size) + 1 for one in case["requests"])
        connector["prefill_blocks"] += sum(blocks)
    if "ranks" in connector and not profile.schedules_by("agrees_first"):
        connector["sync_interval"] = _FIXED_SYNC_INTERVAL
    if "kv_offloading_sync_load_budget_bytes" not in profile.options:
        connector.pop("sync_load_tokens", None)
    if connector.get("state_bytes") and not profile.schedules_by("tells_failed_requests"):
        connector.pop("load_failures", None)
    return connector


def live_case(case: Case) -> tuple[Case, list[VllmScheduler]]:
    """A case with its `resolved` part filled in by vLLM, and vLLM's scheduler of each group, ready
    to run it.
    """
    case = _without_what_it_lacks(case)
    schedulers: list[VllmScheduler] = []
    sides: dict[_native.Role, RankGroup] = {}
    for group in groups_of(case):
        blocks, role = group.num_blocks, group.role.name.lower()
        config = (
            case["config"] | {"num_gpu_blocks": blocks, "role": role} | _rank_options(group, case)
        )
        core = resolve({"config": config})
        resolved = case | {"resolved": resolved_part(core.vllm_config, core.scheduler)}
        requests = [_live_request(resolved, i) for i in by_arrival(case)]
        if group.role == _native.Role.PREFILL:
            states = config["connector"].get("state_bytes", 0) > 0
            requests = [prompt_alone(one, all_but_last=states) for one in requests]
        given = core, requests, speculation(resolved), load_failures(case)
        if group.ranks == 1:
            schedulers.append(scheduler_of(*given))
        else:
            side = sides.setdefault(group.role, RankGroup(group.ranks))
            schedulers.append(rank_of(*given, side.rank(group.rank)))
    return resolved, schedulers


def _rank_options(group: GroupOfCase, case: Case) -> dict[str, Any]:
    """Options of a case for one of several ranks in lock-step; none for a group that is alone."""
    if group.ranks == 1:
        return {}
    return {
        "data_parallel_size": group.ranks,
        "data_parallel_rank": group.rank,
        "dp_sync_interval": case["config"]["connector"]["sync_interval"],
    }


def _live_request(case: Case, index: int) -> LiveRequest:
    data = case["requests"][index]
    return LiveRequest(
        name=data["id"],
        arrival_s=data["arrival"],
        input_tokens=sum(length for _, length in data["segments"]),
        output_tokens=data["output_len"],
        priority=data.get("priority", 0),
        lora=data.get("lora", 0),
        images=images(data),
        prompt=partial(prompt_tokens, data),
        output=partial(output_token, index),
        stops=case["config"].get("ends_with_stop_token", False),
    )
