"""Replays a trace on vLLM's asynchronous engine in this process, with dummy weights and without a
tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError
from llmsim.model import load_model, resolve_dtypes
from llmsim.model.families.presets import config_path
from llmsim.profiler.serve.serve_log import LONG_DTYPES, Job, Log, ServeOptions, Stamps, Step

LEAD_S = 0.2
"""Time between the end of the warm-up and the first arrival."""


def replay(options: ServeOptions, jobs: Sequence[Job]) -> Log:
    """Runs the trace; each request is submitted at its own time, whatever the engine does."""
    if options.clock != "wall":
        raise InputError(
            "--clock cpu: vLLM's engine stamps wall time; say wall, or --engine transformers"
        )
    with tempfile.TemporaryDirectory(prefix="serve-log-") as folder:
        write_config(options.model, Path(folder))
        return asyncio.run(_replay(options, jobs, folder))


def write_config(model: str, folder: Path) -> None:
    """The model's config.json as vLLM wants it: with the name of its class, without notes."""
    fields = {
        k: v for k, v in json.loads(config_path(model).read_text("utf-8")).items() if k[0] != "_"
    }
    if not fields.get("architectures"):
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        kind = str(fields.get("model_type"))
        if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise InputError(
                f'{model}: no class of transformers serves model_type "{kind}"; add "architectures"'
            )
        fields["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")


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
        "enable_prefix_caching": False,  # prompts are made up, so nothing of them can be shared
    }
    if options.max_model_len is not None:
        arguments["max_model_len"] = options.max_model_len
    if options.kv_tokens is not None:
        arguments["num_gpu_blocks_override"] = max(2, options.kv_tokens // 16)
    return arguments


async def _replay(options: ServeOptions, jobs: Sequence[Job], folder: str) -> Log:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    steps: list[Step] = []
    try:
        arguments = AsyncEngineArgs(**engine_arguments(options, folder))
        engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[_logger_class(steps)])
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"vLLM cannot start: {str(error).splitlines()[0][:200]}") from None
    source = random.Random(options.seed)
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        small = [
            Job(f"warm-up-{i}", 0.0, min(job.input_tokens, 64), 4)
            for i, job in enumerate(jobs[: options.warm_up])
        ]
        vocabulary = load_model(options.model).vocab_size
        prompts = [
            [source.randrange(3, vocabulary) for _ in range(job.input_tokens)]
            for job in (*small, *jobs)
        ]
        if small:
            now = time.monotonic()
            await asyncio.gather(
                *(_one(engine, *pair, now) for pair in zip(small, prompts, strict=False))
            )
        steps.clear()
        start = time.monotonic() + LEAD_S
        stamps = await asyncio.gather(
            *(
                _one(engine, job, prompt, start + job.arrival_s)
                for job, prompt in zip(jobs, prompts[len(small) :], strict=True)
            )
        )
        facts = _facts(engine)
    except EngineDeadError:
        raise InputError("vLLM's engine stopped while it served; its log above says why") from None
    finally:
        engine.shutdown()
    return Log("vllm", stamps, list(steps), facts)


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


def _logger_class(steps: list[Step]) -> Any:
    """A stat logger that keeps one record per set of outputs: when, how many tokens, what ran and
    waited.
    """
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepLogger(StatLoggerBase):  # type: ignore[misc, unused-ignore]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._last = time.monotonic()

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            now = time.monotonic()
            extra: dict[str, float] = {}
            for stats, names in (
                (scheduler_stats, ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage")),
                (
                    iteration_stats,
                    ("num_prompt_tokens", "num_generation_tokens", "num_preempted_reqs"),
                ),
            ):
                extra |= {
                    name: float(getattr(stats, name))
                    for name in names
                    if getattr(stats, name, None) is not None
                }
            steps.append(Step(self._last, now, (), extra=extra))
            self._last = now

        def log_engine_initialized(self) -> None:
            pass

    return StepLogger


def _facts(engine: Any) -> dict[str, Any]:
    """What the engine resolved, for provenance and for the simulation's cluster file."""
    import vllm

    config = engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    blocks = getattr(cache, "num_gpu_blocks", None)
    instance = {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "block_size": cache.block_size,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(scheduler.async_scheduling),
    }
    if blocks:
        instance["num_gpu_blocks_override"] = blocks
    return {
        "vllm": vllm.__version__,
        "device": "cuda",
        "num_gpu_blocks": blocks,
        "instance": instance,
    }
