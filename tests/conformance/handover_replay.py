"""The decode side of disaggregation under the installed vLLM's own scheduler, fed with what our run
says of the links.

Our run gives when the decode group saw each request, when its KV had landed, and how long each step
took. vLLM's scheduler, with a connector that loads asynchronously, then decides everything else
itself.

One thing differs on purpose. By priority, vLLM 0.24 can stand still for ever: nothing runs, the KV
of all who are parked is there, and a waiting request that comes before them needs the blocks that
they hold. We then run the first of those who are parked; the comparison ends there, and sees to it
that this is what happens.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from native.pd import Cluster, run, schedule

from llmsim.scheduling.conformance import vllm_live

Requests = list[tuple[int, int, int]]


class RemoteKv:
    """A connector whose remote side has every prompt, once (as vLLM's NIXL connector): only the
    scheduler's half.

    With `all_but_last`, as for models that keep states, of longer prompts all but the last token.
    """

    def __init__(self, *, prefill_all_but_last_token: bool) -> None:
        self.reserved: set[str] = set()
        self.prefill_all_but_last_token = prefill_all_but_last_token

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        if request.request_id in self.reserved:
            return 0, False
        tokens = len(request.prompt_token_ids)
        return tokens - (self.prefill_all_but_last_token and tokens > 1) - computed, True

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        self.reserved.add(request.request_id)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def has_pending_push_work(self) -> bool:
        return False

    def take_events(self) -> tuple[()]:
        return ()

    def _nothing(self, *_: Any) -> None:
        return None

    build_connector_meta = update_connector_output = get_kv_connector_stats = on_new_request = (
        _nothing
    )


@dataclass
class Case:
    requests: Requests
    keys: list[list[int]]
    priority: list[int]
    cluster: Cluster


def random_case(seed: int) -> Case:
    """Five to fifty requests on one pair of groups; the decode side's pool is 5 % to 60 % of what
    they need.
    """
    rng = random.Random(seed)
    size, n = rng.choice([1, 4, 16]), rng.randint(5, 50)
    requests = sorted(
        (rng.randint(0, n * 8000), rng.randint(2, 200), rng.randint(1, 40)) for _ in range(n)
    )
    needed = [-(-(prompt + output) // size) for _, prompt, output in requests]
    blocks = max(max(needed) + 1, sum(needed) * rng.randint(5, 60) // 100) + 1
    cluster = Cluster(
        [10 * sum(needed) + 10],
        [blocks],
        block_size=size,
        max_seqs=rng.randint(2, 12),
        budget=rng.choice([16, 64, 256]),
        caching=rng.random() < 0.5,
        order=rng.choice(["FCFS", "PRIORITY"]),
        watermark=rng.choice([0, 0, 2]),
        bytes_per_s=rng.choice([10**6, 10**7, 10**9]),
        state_bytes=rng.choice([0, 0, 20_000]),
    )
    if (
        cluster.state_bytes
    ):  # a prompt that is cached but for its last token needs its state all the same
        cluster.caching = False
    shared = rng.randint(0, 5)
    keys = [
        list(range(1, 1 + min(shared, row[1] // size))) if rng.random() < 0.6 else []
        for row in requests
    ]
    priority = [rng.randint(-2, 2) for _ in requests]
    cluster.depth = rng.choice([1, 2])
    return Case(requests, keys, priority, cluster)


@dataclass
class Launched:
    """A step in flight; `tokens` are those that it samples."""

    output: Any
    names: list[str]
    tokens: list[list[int]]
    launched: int
    end: int


class Replay:
    """One decode group, synchronous or asynchronous; `run` returns the first
    difference, or None.
    """

    stood_still = False
    """Whether vLLM came to stand still, after which nothing was compared."""

    def __init__(self, case: Case):
        requests, keys, priority, cluster = case.requests, case.keys, case.priority, case.cluster
        sim = run(requests, cluster, keys, priority)
        config = {
            "max_num_seqs": cluster.max_seqs,
            "max_num_batched_tokens": cluster.budget,
            "max_model_len": 100_000,
            "block_size": cluster.block_size,
            "enable_prefix_caching": cluster.caching,
            "enable_chunked_prefill": True,
            "async_scheduling": cluster.depth > 1,
            "policy": "priority" if cluster.order == "PRIORITY" else "fcfs",
            "num_gpu_blocks": cluster.decode[0],
        }
        resolved, self._scheduler = vllm_live.resolve({"config": config})
        self._scheduler.connector = self._remote = RemoteKv(
            prefill_all_but_last_token=cluster.state_bytes > 0
        )
        self._scheduler.defer_block_free = (
            resolved.max_concurrent_batches > 1
        )  # as for a connector that consumes
        self._scheduler.kv_cache_manager.watermark_blocks = cluster.watermark
        self._hasher = vllm_live._block_hasher(resolved)
        self._requests, self._keys, self._priority, self._cluster = (
            requests,
            keys,
            priority,
            cluster,
        )
        self._steps, self._columns = schedule(sim, 1), sim.schedule(1)
        kv_transfers = sim.kv_transfers()
        seen = kv_transfers[
            "prefill_end_ps"
        ].tolist()  # without API latency, when the decode group is told
        self._arrivals = sorted((seen[i], i) for i in range(len(requests)))
        self._landings = sorted(
            (at, i) for i, at in enumerate(kv_transfers["kv_landed_ps"].tolist())
        )
        self._sampled = [0] * len(requests)
        self._now = self._step = self._finished = 0
        self._in_flight: deque[Launched] = deque()
        self._nothing_to_build = False

    def run(self) -> str | None:
        while self._finished < len(self._requests):
            self._add_arrived()
            if len(self._in_flight) == self._cluster.depth or self._nothing_to_build:
                self._end_oldest()
                continue
            output = self._scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            if (names or output.preempted_req_ids) and (difference := self._compare(output, names)):
                return difference
            if names:
                self._launch(output, names)
                continue
            if self._in_flight:
                self._nothing_to_build = True
                continue
            if not output.preempted_req_ids and self._stands_still():
                self.stood_still = True
                return self._compare_rescue()
            heard = self._answer(Launched(output, [], [], self._now, self._now))
            if not heard and not output.preempted_req_ids and not self._skip_idle_time():
                return f"vLLM waits for nothing at {self._now} ps, after {self._step} steps"
        return (
            None
            if self._step == len(self._steps)
            else f"vLLM needs {self._step} steps, we {len(self._steps)}"
        )

    def _add_arrived(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        while self._arrivals and self._arrivals[0][0] <= self._now:
            _, row = self._arrivals.pop(0)
            arrival, prompt, output = self._requests[row]
            shared = [
                key * 1000 + i for key in self._keys[row] for i in range(self._cluster.block_size)
            ][:prompt]
            own = [10_000_000 + row * 1000 + i for i in range(prompt - len(shared))]
            self._scheduler.add_request(
                Request(
                    request_id=str(row),
                    prompt_token_ids=shared + own,
                    pooling_params=None,
                    arrival_time=arrival,
                    sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
                    priority=self._priority[row],
                    block_hasher=self._hasher,
                )
            )

    def _compare(self, output: Any, names: list[str]) -> str | None:
        if self._step == len(self._steps):
            return f"vLLM has a step more at {self._now} ps"
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        theirs = [(int(name), output.num_scheduled_tokens[name], before[name]) for name in names]
        free = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        ours = (
            self._columns["time_ps"][self._step],
            self._steps[self._step],
            self._columns["free_blocks"][self._step],
        )
        if ours != (self._now, theirs, free):
            return f"step {self._step}: ours {ours}, vLLM's {(self._now, theirs, free)}"
        self._step += 1
        return None

    def _stands_still(self) -> bool:
        vllm = self._scheduler
        loading = [
            one for one in vllm.skipped_waiting if one.status.name == "WAITING_FOR_REMOTE_KVS"
        ]
        all_there = all(one.request_id in vllm.finished_recving_kv_req_ids for one in loading)
        return bool(not vllm.running and vllm.waiting and vllm.skipped_waiting and all_there)

    def _compare_rescue(self) -> str | None:
        """Ours runs the first of those who are parked."""
        first = int(self._scheduler.skipped_waiting.peek_request().request_id)
        ours = self._columns["time_ps"][self._step], self._steps[self._step][0]
        theirs = self._now, (first, 1, self._requests[first][1] - 1)
        return (
            None if ours == theirs else f"vLLM stands still at {theirs}; ours goes on with {ours}"
        )

    def _launch(self, output: Any, names: list[str]) -> None:
        tokens = []
        for name in names:
            emits = not self._scheduler.requests[name].is_prefill_chunk
            tokens.append([77 + self._sampled[int(name)]] if emits else [])
            self._sampled[int(name)] += emits
        end = int(self._columns["end_ps"][self._step - 1])
        self._in_flight.append(Launched(output, names, tokens, self._now, end))

    def _end_oldest(self) -> None:
        step = self._in_flight.popleft()
        self._now, self._nothing_to_build = step.end, False
        self._answer(step)

    def _answer(self, step: Launched) -> bool:
        """What the worker says of the step: tokens, and the transfers that had ended when it was
        launched.
        """
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        heard = set()
        while self._landings and self._landings[0][0] <= step.launched:
            heard.add(str(self._landings.pop(0)[1]))
        names, output = step.names, step.output
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=step.tokens,
        )
        answer.kv_connector_output = KVConnectorOutput(finished_recving=heard) if heard else None
        for client in self._scheduler.update_from_output(output, answer).values():
            self._finished += sum(one.finish_reason is not None for one in client.outputs)
        return bool(heard)

    def _skip_idle_time(self) -> bool:
        coming = [at for at, _ in self._arrivals[:1] + self._landings[:1] if at > self._now]
        if coming:
            self._now = min(coming)
        return bool(coming)
