"""Replays a trace on the continuous-batching engine of `transformers`, and says what its batching
does.

Each step it takes decoding requests first, then prompts that are being read, then waiting ones in
order of arrival, up to a number of tokens and of requests; prompts are cut to the budget. The next
step is formed when this one's tokens are known (synchronous, the case without CUDA graphs). Queries
of all requests are packed into one sequence and attend to all keys of the batch under one dense
mask, so attention costs (all new tokens) x (all cached tokens) of the batch.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmsim.config.errors import InputError
from llmsim.model import Layout, load_model, resolve_dtypes
from llmsim.profiler.bundle.defaults import CPU
from llmsim.profiler.bundle.plan import Limits
from llmsim.profiler.device.clock import ReplayClock
from llmsim.profiler.device.device import describe, import_torch, open_device
from llmsim.profiler.device.timing import Stopwatch
from llmsim.profiler.device.yardstick import yardstick_us
from llmsim.profiler.rank.rank import measured_operators
from llmsim.profiler.serve.engine_steps import PAGE, open_engine, refusal
from llmsim.profiler.serve.host_time import host_gap_ns
from llmsim.profiler.serve.module_times import OUTSIDE, Places, marked
from llmsim.profiler.serve.serve_log import Job, Log, ServeOptions, Stamps, Step, warm_up_jobs
from llmsim.profiler.serve.transformers_model import fields_of, random_model

LONGEST_WAIT_S = 3600.0
GAP_SEQUENCES, GAP_PROMPT, GAP_S = 32, 16, 5.0
"""Of the decodes in which the host gap is found: how many at most, their prompts, and about how
long they run.
"""


def replay(options: ServeOptions, jobs: Sequence[Job]) -> Log:
    """Runs the trace with dummy weights; arrivals are kept to the clock."""
    if load_model(options.model).latent is not None:
        raise InputError(
            f"{options.model}: the continuous batching of transformers does not run latent "
            "attention (its cache "
            "has heads of one width); log it on vLLM, with --engine vllm on a GPU"
        )
    torch = import_torch()
    device = open_device(torch, options.device, options.threads)
    if options.tensor_parallel != 1:
        raise InputError(
            "--tensor-parallel-size: the transformers engine is run on one device here; say 1"
        )
    model = random_model(torch, device, options.model, options.dtype, options.seed)
    _check_lengths(model, jobs, options)
    recorder = _Recorder(model, options, jobs)
    try:
        warm = recorder.run(warm_up_jobs(jobs, options.warm_up))[1] if options.warm_up else []
        speed = _speed(torch, device, options)
        speeds = [speed[1]()]
        stamps, steps = recorder.run(jobs)
        speeds.append(speed[1]())
        gap_ns = _host_gap_ns(torch, device, options, recorder, warm)
    finally:
        recorder.close()
    info = describe(torch, device)
    facts = {
        "clock": options.clock, "device": device.type, "name": info.name, **info.facts,
        "attention": model.config._attn_implementation,
        **({speed[0]: [round(us, 1) for us in speeds]} if device.type == "cpu" else {}),
        "pages": recorder.pages, "page_tokens": PAGE, "asynchronous": recorder.asynchronous,
        "instance": {
            "engine_profile": "transformers-5", "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens, "host_gap_ns": gap_ns,
            "num_gpu_blocks_override": recorder.pages + 1,
            "block_size": PAGE, "max_model_len": _longest(model),
        },
    }  # fmt: skip
    return Log("transformers", stamps, steps, facts)


def _host_gap_ns(
    torch: Any, device: Any, options: ServeOptions, recorder: _Recorder, warm: Sequence[Step]
) -> int:
    """Time of a step that no row of a profile has.

    On a CPU what the engine spends outside of the places where a profile measures: forming the
    batch, what the model does once a step, taking the tokens. Where a profile has single kernels
    (models with windows), also the Python of modules, which the model made narrow shows
    (`host_time`). On a GPU, whose kernels run beside Python, the time of the warm-up's steps
    outside of the model.
    """
    if device.type != "cpu":
        return _outside_ns(warm)
    config = load_model(options.model)
    ops = measured_operators(config, Layout(1, 1), resolve_dtypes(config, options.dtype))
    if not refusal(torch, device, config, ops, (1,)):
        step_s = statistics.median([step.end - step.start for step in warm] or [0.0])
        gap = recorder.outside_s(gated=config.mlp_gated, seconds_of_a_step=step_s)
        if gap is not None:
            return round(gap * 1e9)
    with TemporaryDirectory() as folder:
        run = partial(_steps, torch, device)
        gap_ns = host_gap_ns(torch, device, options, fields_of(options.model), run, Path(folder))
        return max(
            gap_ns, _outside_ns(warm)
        )  # a difference of medians is noisy; it is not less than its part


def _steps(torch: Any, device: Any, options: ServeOptions, jobs: Sequence[Job]) -> list[Step]:
    """Serves jobs on an engine of their own, after two of them to warm it up."""
    recorder = _Recorder(
        random_model(torch, device, options.model, options.dtype, options.seed), options, jobs
    )
    try:
        recorder.run([replace(job, request_id=f"first-{job.request_id}") for job in jobs[:2]])
        return recorder.run(jobs)[1]
    finally:
        recorder.close()


def _speed(torch: Any, device: Any, options: ServeOptions) -> tuple[str, Callable[[], float]]:
    """What tells how fast the machine is, as a profile's meta.yaml has it, and its
    measurement, us.
    """
    if device.type == "cpu":
        config = load_model(options.model)
        dtypes = resolve_dtypes(config, options.dtype)
        ops = measured_operators(config, Layout(1, 1), dtypes)
        limits = Limits(CPU.max_tokens, CPU.max_seqs, PAGE)
        engine, _ = open_engine(
            torch,
            device,
            options.model,
            config,
            dtypes.activation,
            ops,
            limits,
            options.clock,
            (1,),
        )
        if engine is not None:
            return "reference_step_us", engine.speed_now_us
    watch = Stopwatch(torch, device, clock=options.clock)
    return "yardstick_us", lambda: yardstick_us(torch, device, watch)


def _outside_ns(steps: Sequence[Step]) -> int:
    gaps = sorted(
        step.end - step.start - step.model_s for step in steps if step.model_s is not None
    )
    return round(gaps[len(gaps) // 2] * 1e9) if gaps else 0


def _longest(model: Any) -> int:
    return int(model.config.max_position_embeddings)


def _check_lengths(model: Any, jobs: Sequence[Job], options: ServeOptions) -> None:
    longest = max(jobs, key=lambda job: job.input_tokens + job.output_tokens)
    most = min(_longest(model), options.max_model_len or _longest(model))
    if longest.input_tokens + longest.output_tokens > most:
        raise InputError(
            f"request {longest.request_id} has {longest.input_tokens} + {longest.output_tokens} "
            f"tokens, more than the model's {most}; give a trace with shorter requests"
        )


class _Recorder:
    """One engine whose batches are observed from outside: stamps are taken around its
    own methods.
    """

    def __init__(self, model: Any, options: ServeOptions, jobs: Sequence[Job]) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self._model = model
        self._options = options
        self._clock = ReplayClock(options.clock)
        self._random = random.Random(options.seed)
        needed = sum(-(-(job.input_tokens + job.output_tokens) // PAGE) + 1 for job in jobs)
        self.pages = (
            max(needed * 2, 16) if options.kv_tokens is None else max(2, options.kv_tokens // PAGE)
        )
        settings = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=self.pages,
            max_batch_tokens=options.max_num_batched_tokens,
            max_requests_per_batch=options.max_num_seqs,
            allow_block_sharing=False,
            scheduler_type="fifo",
            safety_margin=0.0,
            auto_switch_to_flash=True,
        )
        generation = GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
        )
        self._manager = model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=settings
        )
        self._processor = self._manager._create_batch_processor()
        self._manager.batch_processor = self._processor
        self.asynchronous = bool(getattr(self._processor, "use_async_batching", False))
        if self.asynchronous:
            raise InputError(
                "this transformers chose asynchronous batching, which is not recorded; use "
                "--engine vllm"
            )
        self._steps: list[Step] = []
        self._stamps: dict[str, Stamps] = {}
        self._places: Places | None = None
        self._spent: list[dict[str, float]] = []
        self._watch()

    def run(self, jobs: Sequence[Job]) -> tuple[list[Stamps], list[Step]]:
        """Submits each request at its time from this thread while the engine's own thread serves
        them.
        """
        self._steps, self._stamps = [], {}
        if not self._manager.is_running():
            self._manager.start()
        start = self._clock.now()
        for job in sorted(jobs, key=lambda job: job.arrival_s):
            due = start + job.arrival_s
            self._clock.wait_until(due, self._idle)
            self._submit(job, due)
        self._wait(len(jobs))
        return [self._stamps[job.request_id] for job in jobs], self._steps

    def outside_s(self, *, gated: bool, seconds_of_a_step: float) -> float | None:
        """Median over decode steps of the time outside of all operators, s; None where attention
        has no place.

        It counts from the end of one step to that of the next: what the engine does between two
        belongs to them.
        """
        room = min(
            self.pages - 1, self._options.max_num_batched_tokens // GAP_PROMPT
        )  # a page each, read at once
        count = min(self._options.max_num_seqs, GAP_SEQUENCES, room)
        answer = min(max(round(GAP_S / max(seconds_of_a_step, 1e-3)), 9), 64)
        jobs = [Job(f"gap-{index}", 0.0, GAP_PROMPT, answer) for index in range(max(count, 1))]
        self._places = Places(self._clock.now)
        self._spent = []
        with marked(self._model, self._places, gated=gated):
            steps = self.run(jobs)[1]
        decodes = [
            spent
            for step, spent in zip(steps[1:], self._spent[1:], strict=True)
            if all(new == 1 for new, _ in step.batch) and len(step.batch) == len(jobs)
        ]
        self._places = None
        if not decodes or any("attention" not in spent for spent in decodes):
            return None
        return statistics.median(spent[OUTSIDE] for spent in decodes)

    def close(self) -> None:
        """Stops the engine's thread."""
        self._manager.stop(block=True, timeout=60)

    def _submit(self, job: Job, due: float) -> None:
        vocabulary = self._model.config.vocab_size
        ids = [self._random.randrange(3, vocabulary) for _ in range(job.input_tokens)]
        self._stamps[job.request_id] = Stamps(
            job.request_id, job.input_tokens, job.output_tokens, due
        )
        self._manager.add_request(ids, request_id=job.request_id, max_new_tokens=job.output_tokens)
        self._stamps[job.request_id].queued = max(due, self._clock.now())

    def _synchronize(self) -> None:
        """Waits for the device: on a GPU a call returns before its kernels are done, and the rest
        of the step is what the host takes.
        """
        if self._model.device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    def _idle(self) -> bool:
        """Whether the engine waits for requests."""
        return (
            self._manager.input_queue.empty()
            and not self._processor.scheduler.has_pending_requests()
        )

    def _wait(self, count: int) -> None:
        done, deadline = 0, time.perf_counter() + LONGEST_WAIT_S
        while done < count:
            output = self._manager.get_result(timeout=1.0)
            if output is not None:
                if output.error:
                    raise InputError(
                        f"the engine failed on request {output.request_id}: {output.error}"
                    )
                done += 1
            elif not self._manager.is_running() or time.perf_counter() > deadline:
                raise InputError(
                    f"the engine stopped after {done} of {count} requests; see its log above"
                )

    def _watch(self) -> None:
        """Wraps the three calls of a step: form the batch, run the model, take the tokens."""
        processor, local = self._processor, threading.local()
        prepare, generate, update = (
            processor.prepare_next_batch,
            processor._generation_step,
            processor.update_batch,
        )

        def prepared() -> bool:
            local.start = self._clock.now()
            found = bool(prepare())
            if found:
                states = processor.inputs_and_outputs.requests_in_batch
                local.batch = tuple(
                    (s.query_length, s.state.position_offset - s.query_length) for s in states
                )
                for each in states:
                    stamps = self._stamps[each.state.request_id]
                    if stamps.scheduled is None:
                        stamps.scheduled = local.start
            return found

        def generated(model: Any) -> None:
            local.model = self._clock.now()
            generate(model)
            self._synchronize()
            local.model = self._clock.now() - local.model
            if self._places is not None:
                self._places.mark(OUTSIDE)

        def updated() -> None:
            states = [s for s in processor.inputs_and_outputs.requests_in_batch if s.has_new_token]
            update()
            end = self._clock.now()
            for each in states:
                self._stamps[each.state.request_id].tokens.append(end)
            self._steps.append(Step(local.start, end, local.batch, local.model))
            if self._places is not None:
                self._spent.append(self._places.taken())

        processor.prepare_next_batch, processor._generation_step = prepared, generated
        processor.update_batch = updated
