"""Replays a trace on SGLang's asynchronous engine, with dummy weights and without a tokenizer.

The scheduler and the model run in SGLang's own process; requests enter its tokenizer manager in
this one, as its HTTP server would submit them.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmsim.config.engine.profile import profile_of_release
from llmsim.config.errors import InputError
from llmsim.model import load_model, resolve_dtypes
from llmsim.profiler.device.power import PowerMeter
from llmsim.profiler.serve.made_up import FIRST_DEVICE, Prompts, replay_on, serve, short_jobs
from llmsim.profiler.serve.serve_log import LONG_DTYPES, Job, Log, ServeOptions, Stamps
from llmsim.profiler.serve.sglang_batches import (
    RECORD_VARIABLE,
    run_recording_scheduler,
    take_steps,
)


def replay(
    options: ServeOptions, traces: Sequence[Sequence[Job]], done: Callable[[Log], None]
) -> None:
    """Runs the traces one after another on one engine; `done` takes each log when its trace ends.

    Each request is submitted at its own time, whatever the engine does. Raises InputError for
    an engine that cannot start or stops; what `done` took before stays.
    """
    replay_on("SGLang", options, lambda folder: _replay(options, traces, done, folder))


def engine_arguments(options: ServeOptions, folder: str) -> dict[str, Any]:
    """Keyword arguments of SGLang's ServerArgs."""
    dtype = resolve_dtypes(load_model(options.model), options.dtype).activation
    arguments: dict[str, Any] = {
        "model_path": folder,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": LONG_DTYPES.get(dtype, "auto"),
        "max_running_requests": options.max_num_seqs,
        "chunked_prefill_size": options.max_num_batched_tokens,
        "random_seed": options.seed,
        "tp_size": options.tensor_parallel,
        "disable_radix_cache": True,  # prompts are made up, so nothing of them can be shared
        "log_level": "info",
    }
    if options.max_model_len is not None:
        arguments["context_length"] = options.max_model_len
    if options.kv_tokens is not None:
        arguments["max_total_tokens"] = options.kv_tokens
    return {**arguments, **options.engine_arguments}


async def _replay(
    options: ServeOptions, traces: Sequence[Sequence[Job]], done: Callable[[Log], None], folder: str
) -> None:
    from sglang.srt.entrypoints.engine import Engine

    class RecordingEngine(Engine):  # type: ignore[misc, valid-type, unused-ignore]
        run_scheduler_process_func = staticmethod(run_recording_scheduler)

    record = Path(folder) / "steps.jsonl"
    os.environ[RECORD_VARIABLE] = str(record)
    try:
        engine = RecordingEngine(**engine_arguments(options, folder))
    except (ValueError, TypeError, RuntimeError, AssertionError, EOFError) as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"SGLang cannot start: {words[:200]}") from None
    prompts = Prompts(options)
    meter = PowerMeter(FIRST_DEVICE)
    problem = meter.start()

    async def one(job: Job, prompt_ids: list[int], due: float) -> Stamps:
        return await _one(engine, job, prompt_ids, due)

    try:
        small = short_jobs(traces[0], options.warm_up)
        take_steps(record, last_token_of(await serve(one, small, prompts)))
        for jobs in traces:
            began = time.perf_counter()
            stamps = await serve(one, jobs, prompts)
            power: Any = meter.between(began, time.perf_counter()) or {"problem": problem}
            steps = take_steps(record, last_token_of(stamps))
            done(Log("sglang", stamps, steps, _facts(engine) | {"power": power}))
    except TimeoutError as error:
        raise InputError(f"{error}; its log above says why") from None
    finally:
        meter.stop()
        engine.shutdown()


def last_token_of(stamps: Sequence[Stamps]) -> float:
    """When the last token of all came."""
    return max(each.tokens[-1] for each in stamps)


async def _one(engine: Any, job: Job, prompt_ids: list[int], due: float) -> Stamps:
    """One request from submission to its last token."""
    parameters = {
        "temperature": 0.0,
        "max_new_tokens": job.output_tokens,
        "ignore_eos": True,
    }
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    stamps = Stamps(job.request_id, job.input_tokens, job.output_tokens, arrival=time.monotonic())
    stream = await engine.async_generate(
        input_ids=prompt_ids, sampling_params=parameters, stream=True
    )
    async for output in stream:
        now = time.monotonic()
        come = output["meta_info"]["completion_tokens"]
        stamps.tokens += [now] * (come - len(stamps.tokens))
    if not stamps.tokens:
        raise InputError(
            f"SGLang gave no token for request {job.request_id}; does it fit --max-model-len?"
        )
    stamps.queued = stamps.arrival
    return stamps


def _facts(engine: Any) -> dict[str, Any]:
    """What the engine resolved, for provenance and for the simulation's cluster file."""
    import sglang
    import torch

    arguments = engine.server_args
    of_scheduler = engine._scheduler_init_result.scheduler_infos[0]
    page_size = arguments.page_size or 1
    blocks = of_scheduler["max_total_num_tokens"] // page_size
    device = str(arguments.device)
    name = platform.processor() or device
    if device == "cuda":
        name = torch.cuda.get_device_name()
    instance = {
        "scheduler": "sglang",
        "max_num_seqs": arguments.max_running_requests,
        "max_num_batched_tokens": arguments.chunked_prefill_size,
        "block_size": page_size,
        "enable_prefix_caching": not arguments.disable_radix_cache,
        "sglang_overlap": not arguments.disable_overlap_schedule,
        "num_gpu_blocks_override": blocks,
        "engine_profile": profile_of_release("sglang", sglang.__version__),
    }
    eager = bool(getattr(arguments, "disable_cuda_graph", False))
    if eager:
        instance["enforce_eager"] = True
    if arguments.context_length is not None:
        instance["max_model_len"] = arguments.context_length
    return {
        "sglang": sglang.__version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": device,
        "name": name,
        "host": platform.machine(),
        "cpus": os.cpu_count(),
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_gpu_blocks": blocks,
        "attention_backend": str(arguments.attention_backend),
        "sampling_backend": str(arguments.sampling_backend),
        "moe_runner_backend": str(arguments.moe_runner_backend),
        "largest_graph": getattr(arguments, "cuda_graph_max_bs", None) or 0,
        "enforce_eager": eager,
        "mem_fraction_static": arguments.mem_fraction_static,
        "instance": instance,
    }
