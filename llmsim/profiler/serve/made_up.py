"""What replays on vLLM and on SGLang share: the model's configuration, made-up prompts, and
requests that are submitted at their times.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.model import load_model
from llmsim.model.families.presets import config_path
from llmsim.profiler.serve.serve_log import Job, ServeOptions, Stamps

LEAD_S = 0.2
"""Time between the submission of a trace and its first arrival."""
WARM_UP_TOKENS = 4
FIRST_DEVICE = "0"
"""Whose power and clocks are read, as NVML counts devices."""


def write_config(model: str, folder: Path) -> None:
    """The model's config.json as engines want it: with the name of its class, without notes."""
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


def replay_on(
    engine: str, options: ServeOptions, replay: Callable[[str], Coroutine[None, None, None]]
) -> None:
    """Runs `replay` with a folder that holds the model's configuration.

    Raises InputError for another clock than that of the wall, by which engines stamp.
    """
    if options.clock != "wall":
        raise InputError(
            f"--clock cpu: {engine}'s engine stamps wall time; say wall, or --engine transformers"
        )
    with tempfile.TemporaryDirectory(prefix="serve-log-") as folder:
        write_config(options.model, Path(folder))
        asyncio.run(replay(folder))


def short_jobs(jobs: Sequence[Job], count: int) -> list[Job]:
    """Requests like the first ones of the trace, but short, that run before the clock counts."""
    return [
        Job(f"warm-up-{i}", 0.0, min(job.input_tokens, 64), WARM_UP_TOKENS)
        for i, job in enumerate(jobs[:count])
    ]


class Prompts:
    """Made-up prompts: random token ids of the model's vocabulary."""

    def __init__(self, options: ServeOptions) -> None:
        self._source = random.Random(options.seed)
        self._vocabulary = load_model(options.model).vocab_size

    def of(self, job: Job) -> list[int]:
        """As many ids as the request's prompt has."""
        return [self._source.randrange(3, self._vocabulary) for _ in range(job.input_tokens)]


async def serve(
    one: Callable[[Job, list[int], float], Awaitable[Stamps]],
    jobs: Sequence[Job],
    prompts: Prompts,
) -> list[Stamps]:
    """Submits every request at its own time; returns when all have their last token.

    `one` takes a request, its prompt and the time of `time.monotonic` at which it is due.
    """
    made = [prompts.of(job) for job in jobs]
    start = time.monotonic() + LEAD_S
    return await asyncio.gather(
        *(one(job, prompt, start + job.arrival_s) for job, prompt in zip(jobs, made, strict=True))
    )
