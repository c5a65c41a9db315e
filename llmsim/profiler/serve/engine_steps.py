"""Single steps of transformers' engine on a CPU, of any batch, with the time of each operator in
its place.

On a CPU Python and kernels take turns, and small kernels cost what the work around them leaves in
the caches: an operator that is run outside of its model takes about half of its time in it. So rows
for that engine are taken inside: requests that have already read so many tokens are made up, the
engine forms the batch and runs its model, and marks at the borders of modules say where the time
went. What is no operator's is left to the host gap that `serve-log` finds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llmsim.model import Attention, ModelConfig, Operator
from llmsim.profiler.bundle.plan import Limits, Point
from llmsim.profiler.device.clock import ReplayClock
from llmsim.profiler.device.timing import Clock, Timing, summary
from llmsim.profiler.moe.experts import routing
from llmsim.profiler.serve.module_times import MASK, Places, marked, wrapped
from llmsim.profiler.serve.transformers_model import random_model

PAGE = 256
"""Tokens of a page of the engine's cache (its default)."""
SHORT = 63
"""Cached tokens of the decodes in whose steps operators of a token count are timed."""
SHARE_OF_MEMORY = 4
"""Models up to this part of the memory are made whole."""
COST_PAIRS, COST_S = 60, 3.0
"""Steps by which the cost of a mark is found, and about how long they take at most."""
Batch = Sequence[tuple[int, int]]


class EngineSteps:
    """The engine with a model of random weights; `rows` measures a point of the plan."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        model: str,
        config: ModelConfig,
        dtype: str | None,
        ops: Sequence[Operator],
        limits: Limits,
        clock: Clock,
        *,
        samples: int = 9,
        row_s: float = 0.4,
    ) -> None:
        """At least `samples` steps of a batch, for about `row_s` seconds; NotHere where an operator
        has no place.
        """
        self._samples, self._row_s = samples, row_s
        self.speed_us = 0.0
        """What the reference step takes at the speed that all rows are given at."""
        self._config = config
        self._executions = _executions(ops)
        self._attention = sum(op.repeat for op in ops if isinstance(op, Attention))
        self._clock = ReplayClock(clock)
        self._places = Places(self._clock.now)
        self._random = torch.Generator().manual_seed(0)
        self._torch = torch
        self._model = random_model(torch, device, model, dtype)
        self._limits = limits
        self._steps: dict[int, dict[str, Timing]] = {}
        self._processor = _processor(self._model, limits)
        _fill_cache(self._processor.cache, self._model.dtype)
        with self._marked():
            seen = self._spent(((1, 3), (1, 3)))
        missing = [name for name in (*self._executions, "attention") if name not in seen]
        if missing:
            raise NotHere(
                f"transformers' {type(self._model).__name__} has no module known as "
                f"{', '.join(missing)}"
            )
        self._places.cost_s, self.speed_us = self._compared()

    def rows(self, point: Point) -> dict[tuple[object, ...], Timing]:
        """The rows that one measurement gives: all operators of a token count are
        timed together.
        """
        sizes = [int(str(part)) for part in point.key if not isinstance(part, str)]
        if point.table == "dense":
            return {
                (name, sizes[0]): timing
                for name, timing in self._step(sizes[0]).items()
                if name != "attention"
            }
        if point.table == "per_sequence":
            return {point.key: self._step(sizes[0])[str(point.key[0])]}
        if point.table == "moe":
            return {point.key: self._timed(self._batch(sizes[0]), active=sizes[1])["moe"]}
        chunk, before, count, cached = sizes
        return {
            point.key: self._timed([*[(1, cached)] * count, *([(chunk, before)] if chunk else [])])[
                "attention"
            ]
        }

    def _batch(self, tokens: int) -> Batch:
        """Decodes, or one prompt where they are more than the sequences of a step."""
        return [(1, SHORT)] * tokens if tokens <= self._limits.max_seqs else [(tokens, 0)]

    def _step(self, tokens: int) -> dict[str, Timing]:
        """All operators in a step of so many tokens; its rows are in two tables."""
        if tokens not in self._steps:
            self._steps[tokens] = self._timed(self._batch(tokens))
        return self._steps[tokens]

    def speed_now_us(self) -> float:
        """Microseconds of the reference step (some short decodes), median of a few: how fast the
        machine is now.
        """
        batch = self._reference()
        return (
            statistics.median(sum(self._spent(batch).values()) for _ in range(2 * self._samples))
            * 1e6
        )

    def _reference(self) -> Batch:
        return self._batch(min(8, self._limits.max_seqs))

    def _timed(self, batch: Batch, active: int = 0) -> dict[str, Timing]:
        """Microseconds of one execution of each operator, from several steps of one batch;
        `active`: experts in use, 0 for those that the router chooses.

        A reference step runs beside each of them, and times are as if it took `speed_us`: what else
        runs on a machine can make a step take twice its time, in processor time too, and that
        changes from row to row.
        """
        found: dict[str, list[float]] = {name: [] for name in (*self._executions, "attention")}
        reference = self._reference()
        speeds_us: list[float] = []
        with self._marked():
            self._spent(batch)
            started = self._clock.now()
            while len(speeds_us) < self._samples:
                with _routed(self._torch, self._model, active) if active else nullcontext():
                    spent = self._spent(batch)
                for name, times in self._executions.items():
                    found[name].append(spent.get(name, 0.0) / times * 1e6)
                found["attention"].append(
                    (spent["attention"] + spent.get(MASK, 0.0)) / self._attention * 1e6
                )
                speeds_us.append(sum(self._spent(reference).values()) * 1e6)
                if len(speeds_us) >= 3 and self._clock.now() - started > self._row_s:
                    break
        scale = self.speed_us / statistics.median(speeds_us)
        return {name: summary([time * scale for time in times]) for name, times in found.items()}

    def _compared(self) -> tuple[float, float]:
        """Seconds of a mark, from steps with marks and without in turns (a reading of the
        processor's clock is a system call, which slows what follows it, too); and microseconds of
        the steps without, the reference of all rows.
        """
        batch, places = self._reference(), self._places
        plain: list[float] = []
        more: list[float] = []
        began = time.perf_counter()
        while len(more) < COST_PAIRS and (
            len(more) < self._samples or time.perf_counter() - began < COST_S
        ):
            plain.append(sum(self._spent(batch).values()))
            before = places.marks
            with self._marked():
                more.append(
                    (sum(self._spent(batch).values()) - plain[-1]) / (places.marks - before)
                )
        return max(0.0, statistics.median(more)), statistics.median(plain) * 1e6

    def _marked(self) -> AbstractContextManager[None]:
        return marked(self._model, self._places, gated=self._config.mlp_gated)

    def _spent(self, batch: Batch) -> dict[str, float]:
        """Seconds by place of one step."""
        processor = self._processor
        if max(new + cached for new, cached in batch) > self._config.max_position_embeddings > 0:
            raise MemoryError(
                f"a longer context than the model's {self._config.max_position_embeddings} "
                "positions"
            )
        inputs = processor.inputs_and_outputs
        tokens, cached = sum(new for new, _ in batch), sum(before for _, before in batch)
        states = self._states(batch)
        try:
            self._places.taken()
            inputs.prepare_batch_tensors(
                requests_in_batch=states,
                logits_processors=processor.logit_processor,
                use_decode_fast_path=False,
                num_q_tokens=tokens,
                max_kv_read=cached,
                use_padding=False,
            )
            processor._generation_step(self._model)
            return self._places.taken()
        finally:
            for each in states:
                processor.cache.free_blocks(each.state.request_id)

    def _states(self, batch: Batch) -> list[Any]:
        """Requests of which so many tokens are in the cache, and the next ones due; decodes first,
        as the engine.
        """
        from transformers.generation.continuous_batching.requests import (
            FutureRequestState,
            RequestState,
            RequestStatus,
        )

        found = []
        for index, (new, cached) in enumerate(sorted(batch)):
            ids = self._torch.randint(
                self._config.vocab_size, (new,), generator=self._random
            ).tolist()
            state = RequestState(
                request_id=f"row-{index}", initial_tokens=[0] * cached + ids, max_new_tokens=2
            )
            state._status = RequestStatus.DECODING if new == 1 else RequestStatus.PREFILLING
            state.tokens_to_process, state.position_offset = ids, cached
            if not self._processor.cache.can_store_request_tokens(state, new):
                raise MemoryError("the engine's cache has no room for this batch")
            found.append(
                FutureRequestState(state, has_new_token=True, complete_blocks=0, query_length=new)
            )
        return found


class NotHere(Exception):
    """Rows cannot be taken inside the engine; the message says why."""


def open_engine(
    torch: Any,
    device: Any,
    model: str,
    config: ModelConfig,
    dtype: str | None,
    ops: Sequence[Operator],
    limits: Limits,
    clock: Clock,
    degrees: Sequence[int],
) -> tuple[EngineSteps | None, str]:
    """The engine, or None and why rows cannot be taken inside it."""
    why = refusal(torch, device, config, ops, degrees)
    if why:
        return None, why
    try:
        return EngineSteps(torch, device, model, config, dtype, ops, limits, clock), ""
    except NotHere as problem:
        return None, str(problem)
    except (
        Exception
    ) as problem:  # another version of a package that promises nothing about its inner parts
        return (
            None,
            f"it failed: {type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:120]}",
        )


def refusal(
    torch: Any, device: Any, config: ModelConfig, ops: Sequence[Operator], degrees: Sequence[int]
) -> str:
    """Why rows cannot be taken inside transformers' engine; "" where they can."""
    from importlib.util import find_spec

    from llmsim.profiler.device.device import describe

    if device.type != "cpu":
        return "it is for a CPU"
    if find_spec("transformers") is None:
        return "transformers is not installed"
    if tuple(degrees) != (1,):
        return "a model cut for several ranks is none that transformers runs here; give --tp 1"
    if any(op.window for op in ops if isinstance(op, Attention)):
        return "the model has layers with a window"
    if config.latent is not None:
        return "its attention is on a compressed cache"
    weights = sum(op.weight_bytes * op.repeat for op in ops)
    if weights * SHARE_OF_MEMORY > describe(torch, device).memory_bytes:
        return (
            f"the model's {weights / 1e9:.1f} GB of weights are more than a quarter of the memory"
        )
    return ""


def _executions(ops: Sequence[Operator]) -> dict[str, int]:
    """How often a step runs each operator but attention."""
    found: dict[str, int] = {}
    for op in ops:
        if not isinstance(op, Attention):
            found[op.name] = found.get(op.name, 0) + op.repeat
    return found


def _processor(model: Any, limits: Limits) -> Any:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    total = min(
        limits.max_total_kv or limits.max_seqs * limits.max_kv, limits.max_seqs * limits.max_kv
    )
    pages = 2 * limits.max_seqs + (total + limits.max_kv + limits.max_tokens) // PAGE + 8
    settings = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=pages,
        max_batch_tokens=limits.max_tokens + limits.max_seqs,
        max_requests_per_batch=limits.max_seqs + 1,
        allow_block_sharing=False,
        scheduler_type="fifo",
        safety_margin=0.0,
    )
    generation = GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
    )
    manager = model.init_continuous_batching(
        generation_config=generation, continuous_batching_config=settings
    )
    return manager._create_batch_processor()


def _fill_cache(cache: Any, dtype: Any) -> None:
    """Numbers into the engine's cache: pages that nobody wrote are one page of zeros to the
    machine.
    """
    tensor = getattr(cache, "cache_tensor", None)
    if tensor is not None:
        size = dtype.itemsize
        tensor[: len(tensor) // size * size].view(dtype).normal_(0.0, 0.05)


def _routed(torch: Any, model: Any, active: int) -> AbstractContextManager[None]:
    """Every token's choices go round the first `active` experts until left."""

    def forced(path: str, forward: Callable[..., Any]) -> Callable[..., Any] | None:
        def run(hidden: Any, index: Any, weights: Any, *rest: Any, **named: Any) -> Any:
            chosen = routing(torch, index.device, len(index), index.shape[1], active).to(
                index.dtype
            )
            return forward(hidden, chosen, weights, *rest, **named)

        return run if path.endswith(".experts") else None

    return wrapped(model, forced)
