"""Replays a trace on vLLM's asynchronous engine in this process, with dummy weights and without a
tokenizer.
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
from llmsim.profiler.serve.vllm_batches import QUALIFIED_NAME, RECORD_VARIABLE, take_steps


def replay(
    options: ServeOptions, traces: Sequence[Sequence[Job]], done: Callable[[Log], None]
) -> None:
    """Runs the traces one after another on one engine; `done` takes each log when its trace ends.

    Each request is submitted at its own time, whatever the engine does. Raises InputError for
    an engine that cannot start or stops; what `done` took before stays.
    """
    replay_on("vLLM", options, lambda folder: _replay(options, traces, done, folder))


def engine_arguments(options: ServeOptions, folder: str) -> dict[str, Any]:
    """Keyword arguments of vLLM's AsyncEngineArgs."""
    dtype = resolve_dtypes(load_model(options.model), options.dtype).activation
    arguments: dict[str, Any] = {
        "model": folder,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": LONG_DTYPES.get(dtype, "auto"),
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "seed": options.seed,
        "tensor_parallel_size": options.tensor_parallel,
        "disable_log_stats": False,
        "scheduler_cls": QUALIFIED_NAME,
        "enable_prefix_caching": False,  # prompts are made up, so nothing of them can be shared
    }
    if options.max_model_len is not None:
        arguments["max_model_len"] = options.max_model_len
    if options.kv_tokens is not None:
        arguments["num_gpu_blocks_override"] = max(2, options.kv_tokens // 16)
    return {**arguments, **options.engine_arguments}


async def _replay(
    options: ServeOptions, traces: Sequence[Sequence[Job]], done: Callable[[Log], None], folder: str
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    record = Path(folder) / "steps.jsonl"
    os.environ[RECORD_VARIABLE] = str(record)
    # A process that has read the device once cannot be forked.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    try:
        arguments = AsyncEngineArgs(**engine_arguments(options, folder))
        engine = AsyncLLM.from_engine_args(arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"vLLM cannot start: {str(error).splitlines()[0][:200]}") from None
    prompts = Prompts(options)
    meter = PowerMeter(FIRST_DEVICE)
    problem = meter.start()

    async def one(job: Job, prompt_ids: list[int], due: float) -> Stamps:
        return await _one(engine, job, prompt_ids, due)

    try:
        small = short_jobs(traces[0], options.warm_up)
        await serve(one, small, prompts)
        for jobs in traces:
            take_steps(record)
            began = time.perf_counter()
            stamps = await serve(one, jobs, prompts)
            power: Any = meter.between(began, time.perf_counter()) or {"problem": problem}
            facts = _facts(engine) | {"power": power}
            done(Log("vllm", stamps, take_steps(record), facts))
    except EngineDeadError:
        raise InputError("vLLM's engine stopped while it served; its log above says why") from None
    finally:
        meter.stop()
        engine.shutdown()


async def _one(engine: Any, job: Job, prompt_ids: list[int], due: float) -> Stamps:
    """One request from submission to its last token."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    prompt = {"prompt_token_ids": prompt_ids}
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=job.output_tokens,
        min_tokens=job.output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    stamps = Stamps(job.request_id, job.input_tokens, job.output_tokens, arrival=time.monotonic())
    # The largest of several: whoever interrupts between the two readings makes their difference
    # smaller.
    to_monotonic_s = max(time.monotonic() - time.time() for _ in range(5))
    metrics = None
    async for output in engine.generate(prompt, parameters, job.request_id):
        now = time.monotonic()
        stamps.tokens += [now] * len(output.outputs[0].token_ids)
        metrics = output.metrics or metrics
    if not stamps.tokens:
        raise InputError(
            f"vLLM gave no token for request {job.request_id}; does it fit --max-model-len?"
        )
    stamps.queued = stamps.tokens[0]
    if metrics is not None:
        stamps.queued, stamps.scheduled = metrics.queued_ts, metrics.scheduled_ts
        stamps.tokens[0] = metrics.first_token_ts or stamps.tokens[0]
        stamps.tokens[-1] = metrics.last_token_ts or stamps.tokens[-1]
        if metrics.arrival_time:  # of the wall clock, unlike all others
            stamps.arrival = metrics.arrival_time + to_monotonic_s
    return stamps


def _facts(engine: Any) -> dict[str, Any]:
    """What the engine resolved, for provenance and for the simulation's cluster file."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    config = engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    compilation = config.compilation_config
    blocks = getattr(cache, "num_gpu_blocks", None)
    instance = {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "block_size": cache.block_size,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(scheduler.async_scheduling),
        "engine_profile": profile_of_release("vllm", vllm.__version__),
        **_graphs(config),
    }
    if blocks:
        instance["num_gpu_blocks_override"] = blocks
    return {
        "vllm": vllm.__version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": "cuda",
        "name": current_platform.get_device_name(),
        "host": platform.machine(),
        "cpus": os.cpu_count(),
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_gpu_blocks": blocks,
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "largest_graph": max(compilation.cudagraph_capture_sizes or [0]),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "instance": instance,
    }


def _graphs(config: Any) -> dict[str, Any]:
    """The CUDA graphs that the engine captured, as options of an instance."""
    if config.model_config.enforce_eager:
        return {"enforce_eager": True}
    compilation = config.compilation_config
    mode = str(compilation.cudagraph_mode).rpartition(".")[2]
    sizes = sorted(compilation.cudagraph_capture_sizes or [])
    return {"cudagraph_mode": mode} | ({"cudagraph_capture_sizes": sizes} if sizes else {})
