"""The installed SGLang's own scheduler, stepped through a case.

Needs SGLang's Python packages, and no GPU; the worker that would compute answers at once with known
token ids. The two loops of its scheduler are restated here, with a clock that steps set.
"""

import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llmsim.scheduling.conformance.cases import (
    SEQUENCE_PS,
    STEP_PS,
    TOKEN_PS,
    Case,
    by_arrival,
    prompt_tokens,
)
from llmsim.scheduling.conformance.sglang import drafts, host_copies, host_storage, states
from llmsim.scheduling.conformance.sglang.batches import batch_items, batch_result
from llmsim.scheduling.conformance.sglang.loops import dp_ranks, roles
from llmsim.scheduling.conformance.sglang.loops.idle import IdlePasses
from llmsim.scheduling.conformance.sglang.ours import (
    NEVER_PS,
    acceptance,
    keeps_states,
    states_of,
    window_tokens,
)
from llmsim.scheduling.conformance.sglang.platform import write_model

_FIRST_OUTPUT = 1_000_000_000
_PER_REQUEST = 100_000
_NO_LIMIT = 1 << 20
"""Tokens that a request asks for whose answer ends with a stop token."""
_PS_PER_US = 1_000_000
_MOST_IDLE_WITH_STORAGE = 100_000
_FLAGS = (
    "enable_mixed_chunk",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "disable_priority_preemption",
)


def installed_version() -> str | None:
    """The version of the SGLang that would be used, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def server_arguments(config: Case, model: str) -> list[str]:
    """SGLang's command line for a case's configuration, whose limits are those of each rank."""
    ranks = config.get("dp_size", 1)
    arguments = {
        "--model-path": model,
        "--load-format": "dummy",
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--mem-fraction-static": "0.8",
        "--random-seed": "1",
        "--page-size": config["page_size"],
        "--chunked-prefill-size": config["chunked_prefill_size"] * ranks,
        "--max-prefill-tokens": config["max_prefill_tokens"],
        "--max-running-requests": config["max_running_requests"] * ranks,
        "--max-total-tokens": config["max_total_tokens"],
        "--context-length": config["context_length"],
        "--schedule-policy": config["schedule_policy"],
        "--retraction-policy": config["retraction_policy"],
        "--scheduler-recv-interval": config.get("scheduler_recv_interval", 1),
        **drafts.arguments(config, model),
    }
    if config.get("pp_size", 1) > 1:
        arguments["--pp-max-micro-batch-size"] = config["max_running_requests"] // config["pp_size"]
    flags = [*host_copies.arguments(config), *host_storage.arguments(config)]
    flags += ["--skip-tokenizer-init", "--disable-cuda-graph", "--skip-server-warmup"]
    flags += [*roles.arguments(config), *dp_ranks.arguments(config)]
    if config.get("sliding_window", 0) > 0:
        arguments["--swa-full-tokens-ratio"] = config["swa_full_tokens_ratio"]
    if keeps_states(config):
        arguments |= states.arguments(config)
    if config["enable_priority_scheduling"]:
        name = "priority_scheduling_preemption_threshold"
        arguments["--" + name.replace("_", "-")] = config[name]
    for option in _FLAGS:
        if config[option]:
            flags.append("--" + option.replace("_", "-"))
    return [*(str(part) for pair in arguments.items() for part in pair), *flags]


def their_steps(case: Case) -> Iterator[Case]:
    """The steps of SGLang's scheduler, in the form of `run_case`."""
    from sglang.srt.managers import schedule_policy
    from sglang.srt.managers import scheduler as module
    from sglang.srt.server_args import PortArgs, prepare_server_args

    schedule_policy.CLIP_MAX_NEW_TOKENS = case["config"]["clip_max_new_tokens"]
    schedule_policy.set = _InOrder  # of the victims of one request, whose order would be anyone's
    if case["config"].get("speculative_algorithm") is not None:
        drafts.use_stand_in()
    if case["config"].get("disaggregation_mode") is not None:
        roles.use_stand_in(case["config"])
    if keeps_states(case["config"]):
        states.use_stand_in()
    copies = None
    if case["config"].get("enable_hierarchical_cache", False):
        copies = host_copies.Copies(case["config"]["hicache_copy_ps"])
        host_copies.use_stand_in(copies)
        if case["config"].get("hicache_storage_backend") is not None:
            copies.storage = host_storage.use_stand_in(case["config"])
    with tempfile.TemporaryDirectory() as folder:
        config = case["config"]
        window = config.get("sliding_window", 0)
        state_chunk = config.get("mamba_chunk_size", 0)
        model = write_model(Path(folder), config["context_length"], window, state_chunk)
        together = dp_ranks.meeting_point(case)
        arguments = prepare_server_args([*server_arguments(case["config"], model), *together])
        ports = PortArgs.init_new(arguments, *dp_ranks.ports(case))
        module.load_plugins()
        rank = case.get("rank", 0)
        ranks = module.SpawnRanks(world_rank=rank, dp_rank=case.get("rank"), gpu_id=0)
        module.publish(arguments, role="scheduler", ranks=ranks)
        scheduler = module.Scheduler(arguments, ports)
    _check(scheduler, case["config"])
    return _loop_of(case["config"])(scheduler, case, copies).steps()


def _loop_of(config: Case) -> "type[Loop]":
    if config.get("disaggregation_mode") is not None:
        return roles.loop_of(config)
    if config.get("dp_size", 1) > 1:
        from llmsim.scheduling.conformance.sglang.loops.dp_loop import DpLoop

        return DpLoop
    return Loop if config.get("pp_size", 1) == 1 else PipelineLoop


def _check(scheduler: Any, config: Case) -> None:
    """AssertionError where SGLang made something else of the options."""
    found = {
        "page_size": scheduler.page_size,
        "max_total_tokens": scheduler.max_total_num_tokens,
        "max_running_requests": scheduler.max_running_requests,
        "max_prefill_tokens": scheduler.max_prefill_tokens,
        "disable_overlap_schedule": not scheduler.enable_overlap,
    }
    wanted = {name: config[name] for name in found}
    if config.get("sliding_window", 0) > 0:
        found["windows"] = (scheduler.swa_tokens_per_layer, scheduler.tree_cache.swa_retain_window)
        wanted["windows"] = (window_tokens(config), config["sliding_window"])
    if keeps_states(config):
        found["states"] = scheduler.req_to_token_pool.mamba_allocator.size
        wanted["states"] = states_of(config)
    assert found == wanted, f"SGLang runs with {found} instead of {wanted}"


class _InOrder(dict[Any, None]):
    """A set that keeps the order of what is put into it."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        """As a set's."""
        self[item] = None


class Loop:
    """One run of the scheduler: `event_loop_normal` and `event_loop_overlap` of SGLang with given
    step times.
    """

    _most_idle = 10_000
    """Turns in a row in which nothing runs."""
    _skips_finishing = True
    """Whether SGLang's overlapped loop leaves out decodes whose last token is on its way."""

    def __init__(
        self, scheduler: Any, case: Case, copies: host_copies.Copies | None = None
    ) -> None:
        self._scheduler = scheduler
        self._copies = copies
        self._storage = copies.storage if copies is not None else None
        self._passes = IdlePasses(scheduler)
        self._states = states.pool_of(scheduler, case["config"])
        if copies is not None:
            copies.clock = self
        if self._storage is not None:
            self._storage.use(scheduler.tree_cache, self)
            self._most_idle = _MOST_IDLE_WITH_STORAGE
        arrivals = self._arrivals_of(case)
        self._order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
        """Rows of the simulation, in order of arrival here."""
        self._arrival_ps = [arrivals[row][0] for row in self._order]
        rows = by_arrival(case)
        self._requests = [case["requests"][rows[row]] for row in self._order]
        self._index = {request["id"]: i for i, request in enumerate(self._requests)}
        config = case["config"]
        self._stops = config["ends_with_stop_token"]
        self._steps = config.get("speculative_num_steps", 0)
        self._width = config.get("speculative_num_draft_tokens", 1)
        self._acceptance = acceptance(case)
        self._stages = config.get("pp_size", 1)
        self._items: list[tuple[str, int, int]] = []
        """Of the batch that was run last."""
        self.now_ps = self.busy_ps = self.blocked_ps = 0
        self._arrived = 0
        self._sampled = [0] * len(self._requests)
        self._retracted: list[str] = []
        self._flights: deque[tuple[Any, Any, Case]] = deque()
        scheduler.result_queue = deque()
        scheduler.enable_skip_finishing_decode = self._skips_finishing and scheduler.enable_overlap
        scheduler.model_worker.forward_batch_generation = self._forward
        self._given_up: set[int] = set()
        self._satisfied: list[int] = []
        """Requests whose clients have as many tokens as they wanted, which SGLang has not heard."""
        self._content: set[int] = set()
        """All of them."""
        self._aborted: list[str] = []
        scheduler.send_abort_output = self._note_abort
        self._queue = scheduler._add_request_to_queue
        scheduler._add_request_to_queue = self._add_to_queue

    def steps(self) -> Iterator[Case]:
        """Runs to the end."""
        scheduler, idle = self._scheduler, 0
        while not self._ended():
            self._passes.begin(len(self._retracted))
            self._arrive()
            plan = self._plan()
            if self._aborted:
                yield {"aborted": self._aborted}
                return
            scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
            scheduler.cur_batch_for_debug = batch
            yield from self._brought()
            idle = 0 if batch or self._flights else idle + 1
            if batch:
                yield from self._launch(batch)
            if self._flights and (
                not scheduler.enable_overlap or len(self._flights) > 1 or not batch
            ):
                self._complete()
            else:
                self._without_result(batch)
            if idle == self._most_idle:
                yield self._standing_still()
                return
            scheduler.last_batch = batch

    def _plan(self) -> Any:
        """What SGLang would run next."""
        scheduler = self._scheduler
        return scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )

    def _arrivals_of(self, case: Case) -> list[tuple[int, ...]]:
        """When each row's request arrives, and what orders those that arrive together."""
        requests = case["requests"]
        return [(_ps(requests[i]["arrival"]), row) for row, i in enumerate(by_arrival(case))]

    def _brought(self) -> Iterable[Case]:
        """Steps of this turn that took no time."""
        return ()

    def _standing_still(self) -> Case:
        """What ends the steps where nothing runs any more, though requests are left."""
        raise AssertionError(f"{self._waiting()} requests wait, and nothing runs")

    def _without_result(self, batch: Any) -> None:
        """The end of a turn in which no batch ended; time goes on where none began."""
        if not batch:
            self._scheduler.on_idle()
            self._pass_time()

    def _some(self, value: bool) -> bool:
        """Whether any rank says so."""
        return value

    def _pass_time(self) -> None:
        """Once passes find nothing new, until the next request arrives or a copy ends; SGLang is
        idle behind the last one.
        """
        if self._finds_more():
            return
        times = [time for time in self._times_ahead() if time < NEVER_PS]
        if times:
            self.now_ps = max(self.now_ps, min(times))

    def _finds_more(self) -> bool:
        return self._passes.find_more(len(self._retracted))

    def _times_ahead(self) -> list[int]:
        """When something may happen while nothing runs."""
        times = []
        if self._arrived < len(self._requests):
            times.append(self._arrival_ps[self._arrived])
        if self._copies is not None:
            times += [end for end in [self._copies.next_end_ps()] if end is not None]
        if self._storage is not None:
            times += [at for at in [self._storage.next_ps()] if at is not None]
            times += [at for at in self._patience_ends() if at > self.now_ps]
        return times

    def _patience_ends(self) -> Iterator[int]:
        """When clients of arrived requests give up that have not yet."""
        for index, request in enumerate(self._requests[: self._arrived]):
            if index not in self._given_up and "cancel_after" in request:
                yield _ps(request["arrival"]) + _ps(request["cancel_after"])

    def _waiting(self) -> int:
        return len(self._scheduler.waiting_queue)

    def _ended(self) -> bool:
        scheduler = self._scheduler
        return (
            self._arrived == len(self._requests)
            and not scheduler.waiting_queue
            and scheduler.running_batch.is_empty()
            and scheduler.chunked_req is None
            and scheduler.last_batch is None
            and not self._flights
        )

    def _receives(self) -> bool:
        """Whether SGLang looks for requests in this turn; where nothing runs, turns take no time
        until it does.
        """
        skipper, last = self._scheduler.recv_skipper, self._scheduler.last_batch
        if skipper is None:
            return True
        received = skipper.handle(last)
        while not received and self._runs_nothing():
            received = skipper.handle(None)
        return bool(received)

    def _runs_nothing(self) -> bool:
        return self._scheduler.last_batch is None and not self._flights

    def _arrive(self) -> None:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

        if self._storage is not None:
            self._storage.advance(self.now_ps)
        if not self._receives():
            return
        arrived = []
        while self._arrived < len(self._requests):
            request = self._requests[self._arrived]
            if self._arrival_ps[self._arrived] > self.now_ps:
                break
            arrived.append(
                TokenizedGenerateReqInput(
                    rid=request["id"],
                    input_text=None,
                    input_embeds=None,
                    token_type_ids=None,
                    input_ids=array("q", prompt_tokens(request)),
                    mm_inputs=None,
                    sampling_params=self._sampling(self._arrived),
                    return_logprob=False,
                    logprob_start_len=-1,
                    top_logprobs_num=0,
                    token_ids_logprob=None,
                    stream=False,
                    priority=request.get("priority"),
                    **self._role(self._arrived),
                )
            )
            self._arrived += 1
        self._scheduler.process_input_requests([*arrived, *self._give_up()])

    def _role(self, _: int) -> dict[str, Any]:
        """What a request tells a prefill or decode server."""
        return {}

    def _give_up(self) -> list[Any]:
        """Of requests that have arrived, those whose clients have given up meanwhile."""
        from sglang.srt.managers.io_struct import AbortReq

        gone = []
        for index, request in enumerate(self._requests[: self._arrived]):
            if index in self._given_up or "cancel_after" not in request:
                continue
            if _ps(request["arrival"]) + _ps(request["cancel_after"]) <= self.now_ps:
                gone.append(index)
        gone += [index for index in self._satisfied if index not in self._given_up | set(gone)]
        self._satisfied.clear()
        self._given_up |= set(gone)
        return [AbortReq(rid=self._requests[index]["id"]) for index in gone]

    def _sampling(self, index: int) -> Any:
        from sglang.srt.sampling.sampling_params import SamplingParams

        tokens = self._requests[index]["output_len"]
        if self._stops:
            end = output_token(index, tokens - 1)
            sampling = SamplingParams(max_new_tokens=_NO_LIMIT, stop_token_ids=[end])
        else:
            sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        sampling.normalize(None)
        return sampling

    def _forward(
        self, batch: Any, forward_batch: Any = None, on_publish: Any = None, **_: Any
    ) -> Any:
        """In place of the model: the next tokens of all that have computed all they know."""
        speculates = not batch.spec_algorithm.is_none()
        if batch.forward_mode.is_idle():
            self._items = []
            return drafts.settled(batch, [], on_publish) if speculates else batch_result([])
        self._items = batch_items(batch, self._width if speculates else 1)
        if speculates and not batch.forward_mode.is_extend():
            runs = [self._sample(request, self._accepted(request)) for request in batch.reqs]
            return drafts.verified(batch, runs, self._width, on_publish)
        cut = batch.chunked_req if batch.forward_mode.is_extend() else None
        runs = [self._sample(request, 0, counts=request is not cut) for request in batch.reqs]
        tokens = [token for (token,) in runs]
        return drafts.settled(batch, tokens, on_publish) if speculates else batch_result(tokens)

    def _accepted(self, request: Any) -> int:
        """Drafts of a request that hold now."""
        index, steps = self._index[request.rid], self._steps
        return int(self._acceptance.accepted(self._order[index], self._sampled[index], steps))

    def _sample(self, request: Any, accepted: int, *, counts: bool = True) -> list[int]:
        index = self._index[request.rid]
        first = self._sampled[index]
        self._sampled[index] += (1 + accepted) if counts else 0
        return [output_token(index, first + k) for k in range(1 + accepted)]

    def _note_abort(self, _: Any, request: Any) -> None:
        """Of SGLang's own accord, and not for a client."""
        if self._index[request.rid] not in self._given_up:
            self._aborted.append(request.rid)

    def _add_to_queue(self, request: Any, is_retracted: bool = False) -> None:
        if request.is_retracted:  # for memory, or for who is more important
            self._retracted.append(request.rid)
            self._sampled[self._index[request.rid]] = len(request.output_ids)
        self._queue(request, is_retracted=is_retracted)

    def _launch(self, batch: Any) -> Iterator[Case]:
        scheduler = self._scheduler
        step: Case = {
            "schedule_ps": self.now_ps,
            "preempted": sorted(self._retracted),
            **self._figures(),
        }
        self._retracted.clear()
        result = scheduler.run_batch(batch)
        self._flights.append((batch.copy(), result, step))
        scheduler.result_queue.append((self._flights[-1][0], result))
        self.busy_ps = self._start_ps(batch) + self._step_ps(batch)
        step |= {"end_ps": self.busy_ps, "scheduled": self._items}
        if not batch.spec_algorithm.is_none():
            verifies = not batch.forward_mode.is_extend()
            step["drafts"] = {name: more - 1 for name, more, _ in self._items if verifies}
        yield step

    def _figures(self) -> Case:
        """What a step is compared by, beside its batch."""
        return {
            "running": self._running(),
            "waiting": self._waiting(),
            "free_blocks": self._free(),
            **self._states.free("free_states"),
        }

    def _start_ps(self, batch: Any) -> int:
        """When the batch that was run last begins."""
        start = max(self.now_ps, self.busy_ps, self.blocked_ps)
        if self._copies is not None and batch.hicache_consumer_index >= 0:
            start = max(start, self._copies.loaded_ps)  # its prompts wait for that
        return start

    def _step_ps(self, _: Any) -> int:
        """How long the batch that was run last takes."""
        tokens = sum(number for _, number, _ in self._items)
        return STEP_PS + TOKEN_PS * tokens + SEQUENCE_PS * len(self._items)

    def _running(self) -> int:
        """Requests that hold a row."""
        scheduler = self._scheduler
        return int(scheduler.max_running_requests - scheduler.req_to_token_pool.available_size())

    def _complete(self) -> None:
        """The oldest batch in flight ends; its step gets what is known then."""
        batch, result, step = self._flights.popleft()
        self._scheduler.result_queue.popleft()
        self.now_ps = max(self.now_ps, step["end_ps"])
        before = {request.rid for request in batch.reqs if not request.finished()}
        self._scheduler.process_batch_result(batch, result)
        ended = {request.rid for request in batch.reqs if self._has_ended(request)}
        for request in batch.reqs:
            wanted = self._requests[self._index[request.rid]].get("cancel_after_tokens")
            if wanted is not None and len(request.output_ids) >= wanted:
                self._satisfied.append(self._index[request.rid])
        self._content.update(self._satisfied)
        step["finished"] = sorted(before & ended)
        step["free_blocks_after"] = self._free()
        step |= self._states.free("free_states_after")

    def _has_ended(self, request: Any) -> bool:
        """Whether a request ends with its answer, and a client that still waits for it."""
        index = self._index[request.rid]
        asked = self._requests[index]
        if index in self._content:
            return False
        patience = asked.get("cancel_after")
        if patience is not None and _ps(asked["arrival"]) + _ps(patience) <= self.now_ps:
            return False
        return request.finished() and type(request.finished_reason).__name__ != "FINISH_ABORT"

    def _free(self) -> int:
        """Pages; where layers with a window have some of their own, those of the others."""
        scheduler = self._scheduler
        allocator, cache = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
        if scheduler.is_hybrid_swa:
            tokens = allocator.full_available_size() + cache.full_evictable_size()
        else:
            tokens = allocator.available_size() + cache.evictable_size()
        return int(tokens // scheduler.page_size)


class PipelineLoop(Loop):
    """`event_loop_pp` of SGLang on its first stage: micro-batches take turns, and each waits for
    its own result before its next turn. Ends where SGLang aborts a request that is alone in its
    micro-batch and finds no room beside the others.
    """

    def steps(self) -> Iterator[Case]:
        """Runs to the end."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        scheduler, stages, idle = self._scheduler, self._stages, 0
        batches: list[Any] = [None] * stages
        last: list[Any] = [None] * stages
        running = [ScheduleBatch(reqs=[], batch_is_full=False) for _ in range(stages)]
        scheduler._collect_inflight_batches = lambda: [*running, *batches]  # as with stages
        while not self._drained([*running, *filter(None, last)]):
            some_ran = False
            self._passes.begin(len(self._retracted))
            for turn in range(stages):
                scheduler.running_batch, scheduler.last_batch = running[turn], last[turn]
                self._arrive()
                plan = self._plan_turn(turn, running[turn], last[turn])
                if self._aborted:
                    yield {"aborted": self._aborted}
                    return
                running[turn] = scheduler.running_batch = plan.running_batch
                batches[turn] = scheduler.cur_batch_for_debug = plan.batch_to_run
                yield from self._brought()
                if batches[turn]:
                    some_ran = True
                    yield from self._launch(batches[turn])
                after = (turn + 1) % stages
                self._agree(after)
                if batches[after] is not None:
                    self._complete()
                    last[after] = batches[after]
                self._end_turn(after)
            idle = 0 if some_ran else idle + 1
            if not some_ran:
                self._rest()
            if idle == self._most_idle:
                yield self._standing_still()
                return

    def _plan_turn(self, _: int, running: Any, last: Any) -> Any:
        """What SGLang would run in this turn, whose micro-batch has these batches."""
        return self._scheduler.get_next_batch_to_run(running_batch=running, last_batch=last)

    def _agree(self, after: int) -> None:
        """What all stages have agreed on since the last turn of the next micro-batch happens."""

    def _end_turn(self, after: int) -> None:
        """The result of the next turn's micro-batch has been processed."""

    def _rest(self) -> None:
        """All turns have passed, and nothing runs."""
        self._scheduler.on_idle()
        self._pass_time()

    def _runs_nothing(self) -> bool:
        """A micro-batch that has ended stays the last one of its turn."""
        return self._running() == 0 and not self._flights

    def _drained(self, batches: Sequence[Any]) -> bool:
        return (
            self._arrived == len(self._requests)
            and not self._scheduler.waiting_queue
            and not self._flights
            and all(request.finished() for batch in batches for request in batch.reqs)
        )


def output_token(index: int, k: int) -> int:
    return _FIRST_OUTPUT + index * _PER_REQUEST + k


def _ps(seconds: float) -> int:
    """Whole microseconds as ps."""
    return round(seconds * 1e6) * _PS_PER_US
