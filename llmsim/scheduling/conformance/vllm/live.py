"""The installed vLLM's own scheduler and KV cache manager behind our loop: your version, exactly.

Needs the extra `llmsim[vllm]`; the model is replaced by known token ids, so nothing but scheduling
runs.
"""

import re
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config.engine.profile import PROVEN, EngineProfile, load_profile, nearest_profile
from llmsim.config.errors import InputError
from llmsim.model.memory.hybrid_groups import KEEPS_STATE
from llmsim.scheduling.base import Emitted, ScheduledItem
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
    groups_of,
    load_failures,
)
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.scheduling.conformance.repetition import Repetition
from llmsim.scheduling.conformance.vllm.platform import prepare, prepare_runner, write_model


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


def resolve(case: Case) -> tuple[Any, Any]:
    """vLLM's own configuration object for a case's `config`, and its scheduler.

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
        scheduler = _scheduler(
            vllm_config,
            config["num_gpu_blocks"],
            _tables(config),
            config.get("prefix_cache_retention_interval", -1),
            config.get("checkpoint_alignment", 0),
        )
        _set_encoder(scheduler, config)
        return vllm_config, scheduler


def _set_afterwards(vllm_config: Any, config: dict[str, Any]) -> None:
    """What no option of vLLM's engine arguments sets, or what they would refuse here."""
    if "prefix_match_unit" in config:
        vllm_config.cache_config.prefix_match_unit = config["prefix_match_unit"]
    limits = vllm_config.scheduler_config
    most = limits.max_num_scheduled_tokens or config["max_num_batched_tokens"]
    limits.max_num_scheduled_tokens = min(most, config.get("max_num_scheduled_tokens", most))
    limits.prefill_schedule_interval = config.get("prefill_schedule_interval", 1)
    # Asked for with the other options, it would want an executor with as many workers.
    vllm_config.parallel_config.pipeline_parallel_size = config.get("pipeline_parallel_size", 1)


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
            kv_connector_extra_config={
                "num_chunks": connector["pool_chunks"],
                "blocks_per_chunk": connector["chunk_blocks"],
                "eviction_policy": connector["eviction"],
                "store_threshold": connector["store_threshold"],
                "offload_prompt_only": connector["prompt_only"],
                "sync_load_tokens": connector["sync_load_tokens"],
            },
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


def _scheduler(
    vllm_config: Any,
    num_blocks: int,
    tables: Sequence[tuple[int, int]],
    retention: int,
    alignment: int,
) -> Any:
    """vLLM's scheduler with tables of blocks for windows (`model.memory.hybrid_groups`), of one
    layer each.
    """
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    states = any(window == KEEPS_STATE for window, _ in tables)
    if vllm_config.cache_config.enable_prefix_caching and states:
        vllm_config.cache_config.mamba_cache_mode = "align"
    groups = [
        KVCacheGroupSpec([f"layer.{i}"], layer_spec(vllm_config, window, alignment, size))
        for i, (window, size) in enumerate(tables)
    ]
    kv_config = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    if retention >= 0 and hasattr(kv_config, "prefix_cache_retention_interval"):
        kv_config.prefix_cache_retention_interval = retention
    block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_config, vllm_config)
    return vllm_config.scheduler_config.get_scheduler_cls()(
        vllm_config=vllm_config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=False,
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
        "num_prefill_lookahead_tokens": getattr(vllm_config, "num_prefill_lookahead_tokens", 0),
        "reserve_full_isl": scheduler.scheduler_reserve_full_isl,
        "watermark": vllm_config.scheduler_config.watermark,
        "draft_slots": 0 if drafts is None else drafts.max_num_new_slots_for_drafting,
        "engine_profile": engine_profile_of(installed_version() or "none"),
        "prefix_cache_retention_interval": _retention(scheduler.kv_cache_config),
    }


def _retention(kv_config: Any) -> int:
    """As our option; releases before 0.33 have none."""
    interval = getattr(kv_config, "prefix_cache_retention_interval", None)
    return -1 if interval is None else int(interval)


class LiveRequest(Struct, frozen=True):
    """A request as vLLM sees it. `prompt` makes its token ids, `output` the k-th token of its
    answer.
    """

    name: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    priority: int
    prompt: Callable[[], list[int]]
    output: Callable[[int], int]
    lora: int = 0
    """The adapter's number; 0: none."""
    images: Sequence[tuple[int, int, int]] = ()
    """First token, tokens and content of what an encoder computes."""
    stops: bool = False
    """The answer ends with its last token, as with the end of a text, and not because no more was
    asked for.
    """


class VllmScheduler:
    """vLLM's scheduler as `llmsim.scheduling.base.Scheduler`; `requests` by row.

    With a connector it also has the methods of `llmsim.scheduling.base.Connector`.
    """

    queues_empty_batches = True

    def __init__(
        self,
        requests: Sequence[LiveRequest],
        vllm_config: Any,
        scheduler: Any,
        speculation: Any,
        interval: int = 1,
        failures: "_native.LoadFailuresConfig | None" = None,
    ) -> None:
        self._requests = requests
        self._row = {request.name: row for row, request in enumerate(requests)}
        self._speculation = speculation
        # From 0.33 on the scheduler counts by itself where no data-parallel ranks do.
        self._interval = 1 if getattr(scheduler, "local_prefill_interval", 1) > 1 else interval
        self._steps = 0
        self._scheduler = scheduler
        self._drafts_from_model = (
            scheduler.num_spec_tokens > 0 and not vllm_config.scheduler_config.async_scheduling
        )
        self._hasher = _block_hasher(vllm_config)
        self._runner = ModelRunner(requests, speculation)
        self._async = vllm_config.scheduler_config.async_scheduling
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self.stood_still_ps: set[int] = set()
        """When nothing but a new request, or a client that gives up, could let it go on: it
        schedules nothing, or begins again what it has just done in vain.
        """
        self._repetition = Repetition()
        self._failures = failures or _native.LoadFailuresConfig()
        self._connector: Any = getattr(scheduler, "connector", None)
        if self._connector is not None:
            self._connector.rows = self._row
            self._connector.failures = _native.LoadFailures(self._failures)
            self._connector.loses_all = self._failures.loses_all

    def add(self, request: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        one = self._requests[request]
        self._repetition.told()
        self._scheduler.add_request(
            Request(
                request_id=one.name,
                prompt_token_ids=one.prompt(),
                sampling_params=SamplingParams(ignore_eos=True, **self._end(one)),
                pooling_params=None,
                arrival_time=one.arrival_s,
                priority=one.priority,
                block_hasher=self._hasher,
                lora_request=_adapter(one.lora),
                mm_features=_features(one.images),
            )
        )

    def _end(self, one: LiveRequest) -> dict[str, Any]:
        if not one.stops:
            return {"max_tokens": one.output_tokens}
        return {
            "max_tokens": self._scheduler.max_model_len,
            "stop_token_ids": [one.output(one.output_tokens - 1)],
        }

    def build(self, now_ps: int) -> tuple[list[ScheduledItem], list[int]]:
        from vllm.v1.outputs import ModelRunnerOutput

        self._note_repetition(now_ps)
        output = self._scheduler.schedule(throttle_prefills=self._steps % self._interval != 0)
        self._steps = self._steps + 1 if output.num_scheduled_tokens else 0
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        started = [*(new.req_id for new in output.scheduled_new_reqs), *cached.resumed_req_ids]
        for name in started:
            # What it samples for a batch in flight comes after what it is told now.
            request = self._scheduler.requests[name]
            if getattr(request, "drop_stale_output", False):
                self._runner.forgets(self._row[name], request.num_tokens)
            known = None if self._async else request.num_tokens
            self._runner.starts(self._row[name], before[name], known)
        names = list(output.num_scheduled_tokens)
        items, tokens = [], []
        for name in names:
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            padded = name in started  # it has proposed nothing yet: none of its drafts holds
            sampled = self._runner.sample(
                self._row[name], output.num_scheduled_tokens[name], drafts, holds=not padded
            )
            tokens.append(sampled)
            items.append(
                (
                    self._row[name],
                    output.num_scheduled_tokens[name],
                    before[name],
                    drafts,
                    bool(sampled),
                )
            )
        if names:
            row_of = {name: row for row, name in enumerate(names)}
            answer = ModelRunnerOutput(
                req_ids=names, req_id_to_index=row_of, sampled_token_ids=tokens
            )
            self._in_flight.append((output, answer))
        elif self._stands_still():
            self.stood_still_ps.add(now_ps)
        preempted = [self._row[name] for name in output.preempted_req_ids or ()]
        self._repetition.stepped((tuple(items), tuple(preempted)))
        return items, preempted

    def _note_repetition(self, now_ps: int) -> None:
        """Requests that neither run nor wait for a step hold blocks with a connector alone."""
        if self._connector is None or self._in_flight or self._scheduler.running:
            return
        if self._awaits_blocks():
            self._repetition.told()
        self.stood_still_ps.update(self._repetition.rests(now_ps))

    def _stands_still(self) -> bool:
        """Whether requests wait although nothing runs and no block will ever be given back."""
        vllm = self._scheduler
        if self._connector is None or self._in_flight or vllm.running:
            return False
        return bool(vllm.requests) and not self._awaits_blocks()

    def _awaits_blocks(self) -> bool:
        """Whether blocks come back that neither a running request nor a step in flight holds."""
        from vllm.v1.request import RequestStatus

        if getattr(self._connector, "copies", None) is not None and self.pending():
            return True
        arrived = self._scheduler.finished_recving_kv_req_ids
        for request in self._scheduler.requests.values():
            loads = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            if loads and request.request_id not in arrived:
                return True  # then it runs, and ends
            if request.is_finished():
                return True  # when another group has read it
        return False

    @property
    def connects(self) -> bool:
        """Whether vLLM's scheduler has a KV connector."""
        return self._connector is not None

    @property
    def keeps_finished(self) -> bool:
        """Whether another group reads what ended here."""
        return bool(self._connector is not None and self._connector.keeps_finished)

    def take_reserved(self) -> list[tuple[int, int]]:
        """Requests that the last `build` parked until their KV has come from another group, and
        tokens of each that were here.
        """
        reserved, self._connector.reserved = self._connector.reserved, []
        return reserved  # type: ignore[no-any-return]

    def transferred(self, request: int) -> bool:
        """The KV of a parked request is there, or that of one that ended has been read; true: it
        could not be loaded, and the request has ended with an error.
        """
        from vllm.v1.core.sched.output import SchedulerOutput
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        self._repetition.told()
        told = self._connector.moved(self._requests[request].name, self._blocks)
        moved = KVConnectorOutput(**told)
        answer = ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=moved)
        outputs = self._scheduler.update_from_output(SchedulerOutput.make_empty(), answer)
        return any(client.outputs for client in outputs.values())

    def _blocks(self, name: str) -> Any:
        return self._scheduler.kv_cache_manager.get_block_ids(name)[0]

    def use_tiers(self, below: Any) -> None:
        """Pools of KV below the group (`_native.PoolsBelow`)."""
        self._connector.below = below

    def use_copies(self, copies: Any) -> None:
        """What carries out the copies of vLLM's own offloading (`_native.CopiesBelow`)."""
        self._connector.copies = copies

    def pending(self) -> bool:
        """Whether vLLM's engine forms another step, although nobody runs or waits."""
        ended = bool(self._scheduler.finished_req_ids)
        return ended or bool(self._connector.has_pending_push_work())

    def asks_again(self) -> bool:
        """Whether vLLM's engine, with nothing in flight, would come to schedule something by asking
        once more.
        """
        vllm = self._scheduler
        if not (vllm.use_pp and vllm.use_v2_model_runner):
            return False
        return any(
            vllm.current_step < request.next_decode_eligible_step for request in vllm.running
        )

    def abort(self, request: int) -> None:
        from vllm.v1.request import RequestStatus

        self._repetition.told()
        self._scheduler.finish_requests(
            self._requests[request].name, RequestStatus.FINISHED_ABORTED
        )

    def complete(self) -> list[Emitted]:
        output, answer = self._in_flight.popleft()
        outputs = self._scheduler.update_from_output(output, answer)
        if any(answer.sampled_token_ids):
            self._repetition.told()
        if self._drafts_from_model:
            from vllm.v1.outputs import DraftTokenIds

            number = self._speculation.drafts_after(len(answer.req_ids))
            drafts = [[7] * number if self._proposes(name) else [] for name in answer.req_ids]
            self._scheduler.update_draft_token_ids(DraftTokenIds(list(answer.req_ids), drafts))
        return [
            (self._row[one.request_id], len(one.new_token_ids), one.finish_reason is not None)
            for client in outputs.values()
            for one in client.outputs
        ]

    def _proposes(self, name: str) -> bool:
        row = self._row[name]
        return bool(self._speculation.proposes(row, self._runner.sampled(row)))

    def gauges(self) -> tuple[int, int, int]:
        running, waiting = (
            self._scheduler.get_request_counts()
        )  # their queues differ between releases
        return running, waiting, self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def _features(found: Sequence[tuple[int, int, int]]) -> list[Any]:
    """Images as vLLM's multimodal features."""
    if not found:
        return []
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"image-{content}",
            mm_position=PlaceholderRange(offset=offset, length=tokens),
        )
        for offset, tokens, content in found
    ]


def _adapter(number: int) -> Any:
    if number == 0:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"adapter-{number}", number, "nowhere")


def _block_hasher(vllm_config: Any) -> Callable[..., Any] | None:
    if not vllm_config.cache_config.enable_prefix_caching:
        return None
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    function = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    ahead = getattr(vllm_config, "num_hash_lookahead_tokens", 0)
    cache = vllm_config.cache_config
    unit = getattr(cache, "prefix_match_unit", None) or cache.block_size
    hasher: Callable[..., Any] = get_request_block_hasher(
        unit, function, *([ahead] if ahead else [])
    )
    return hasher


def _without_what_it_lacks(case: Case) -> Case:
    """The case for a release of whose rules we know no cached states, slots of adapters or images:
    without these.
    """
    profile = load_profile(engine_profile_of(installed_version() or "none"))
    config = dict(case["config"])
    if not profile.schedules_by("counts_running_loras"):
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
        config.pop("prefix_match_unit", None)
    offloads = config.get("connector", {}).get("kind") == OFFLOADING
    if offloads and not profile.schedules_by("offloads"):
        del config["connector"]
    if "connector" in config:
        config["connector"] = _connector_for(profile, case)
    return {**case, "config": config}


def _with_all(case: Case, **fields: Any) -> Case:
    """The case with these fields in each of its requests."""
    return {**case, "requests": [one | fields for one in case["requests"]]}


def _connector_for(profile: EngineProfile, case: Case) -> dict[str, Any]:
    """The connector of a case as the release has it.

    We do not follow 0.24 where a prompt whose last step is in flight loses its blocks, since it
    then hands over what it has given back: there, no prompt is preempted. Nor do we know which
    loads fail where layers keep states, unless the release tells.
    """
    connector: dict[str, Any] = dict(case["config"]["connector"])
    if connector.get("kind") == HANDOVER and not profile.schedules_by("delivers_kv"):
        size = case["config"]["block_size"]
        blocks = (-(-len(prompt_tokens(one)) // size) + 1 for one in case["requests"])
        connector["prefill_blocks"] += sum(blocks)
    if connector.get("state_bytes") and not profile.schedules_by("tells_failed_requests"):
        connector.pop("load_failures", None)
    return connector


def live_case(case: Case) -> tuple[Case, list[VllmScheduler]]:
    """A case with its `resolved` part filled in by vLLM, and vLLM's scheduler of each group, ready
    to run it.
    """
    case = _without_what_it_lacks(case)
    interval = case["config"].get("prefill_schedule_interval", 1)
    schedulers = []
    for group in groups_of(case):
        blocks, role = group.num_blocks, group.role.name.lower()
        config = case["config"] | {"num_gpu_blocks": blocks, "role": role}
        vllm_config, scheduler = resolve({"config": config})
        resolved = case | {"resolved": resolved_part(vllm_config, scheduler)}
        requests = [_live_request(resolved, i) for i in by_arrival(case)]
        if group.role == _native.Role.PREFILL:
            states = config["connector"].get("state_bytes", 0) > 0
            requests = [prompt_alone(one, all_but_last=states) for one in requests]
        drafts = speculation(resolved)
        failures = load_failures(case)
        schedulers.append(
            VllmScheduler(requests, vllm_config, scheduler, drafts, interval, failures)
        )
    return resolved, schedulers


def prompt_alone(request: LiveRequest, *, all_but_last: bool) -> LiveRequest:
    """What a proxy asks the side of prompts for: one token, and of models with states a prompt
    without its last token.
    """
    tokens = request.input_tokens - (all_but_last and request.input_tokens > 1)
    return replace(
        request,
        output_tokens=1,
        stops=False,
        input_tokens=tokens,
        prompt=lambda: request.prompt()[:tokens],
    )


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
