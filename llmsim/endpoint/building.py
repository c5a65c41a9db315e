"""From the options of a run to an endpoint that can be served."""

import time
from pathlib import Path

from llmsim import _native
from llmsim.api.checked.run_options import RunOptions
from llmsim.api.cluster import Cluster
from llmsim.api.preparation.prepare import Compiled, compile_cluster
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.config.errors import NotYetError
from llmsim.endpoint.engine.async_engine import AsyncEngine, Listener
from llmsim.endpoint.engine.clock import Clock
from llmsim.endpoint.engine.live import live_simulation
from llmsim.endpoint.engine_metrics import EngineOptions
from llmsim.endpoint.http.calls import Endpoint, Served
from llmsim.endpoint.metrics import Metrics
from llmsim.endpoint.text import Answers, tokenizer_of
from llmsim.lowering.kv.tiers import Medium
from llmsim.lowering.types import LoweredGroup

SOURCES: dict[tuple[Medium, ...], str] = {("CPU",): "host", ("SSD",): "disk"}
"""What vLLM calls the tier of these media, where there is one alone."""


def built(
    options: RunOptions,
    clock: Clock,
    recorder: Listener | None,
    *,
    tokenizer: Path | None,
    output_tokens: int,
    rows: int,
    api_key: str,
) -> Endpoint:
    """An endpoint over the cluster of the options; raises InputError, InfeasibleError, NotYetError.

    `recorder` hears of all requests; `rows` are those that may be under way at a time.
    """
    compiled = compile_cluster(Cluster.load(options.cluster).parsed(), options)
    _check_live(compiled, options)
    live = live_simulation(
        compiled,
        rows,
        router=options.router,
        decode_router=options.decode_router,
        seed=options.seed,
        policies=options.policies,
    )
    lowered = compiled.lowered
    groups = [group.info for group in lowered.groups]
    text = tokenizer_of(tokenizer)
    max_loras = max((group.engine.max_loras or 0 for group in lowered.groups), default=0)
    media = () if options.tiers is None else options.tiers.media
    engines = [_engine_options(group, media) for group in lowered.groups]
    metrics = Metrics(live, groups, lowered.models, engines, max_loras or None)
    listeners = [metrics] if recorder is None else [metrics, recorder]
    started = int(time.time())
    limits = list(zip(groups, live.max_model_len, strict=True))
    models = [
        Served(name, number, min(n for group, n in limits if group.model_name == name), started)
        for number, name in enumerate(lowered.models)
    ]
    return Endpoint(
        AsyncEngine(live, clock, listeners),
        metrics,
        text,
        Answers(text, options.seed),
        models,
        output_tokens,
        api_key,
    )


def _check_live(compiled: Compiled, options: RunOptions) -> None:
    """Raises NotYetError for what does not go with requests that come over HTTP."""
    if options.max_concurrency or options.horizon_ps is not None or options.outside:
        raise NotYetError(
            "--max-concurrency, --horizon and times of another ASTRA-sim do not fit requests that "
            "come over HTTP; leave them out"
        )
    if compiled.lowered.layouts is not None:
        raise NotYetError(
            f"{options.cluster}: layouts do not switch under requests that come over HTTP in this "
            "version; name one layout's instances under nodes"
        )
    if any(group.engine.scheduler == INSTALLED for group in compiled.lowered.groups):
        raise NotYetError(
            f"the scheduler {INSTALLED} has to know all requests before a run, and those of an "
            f"endpoint come over HTTP; choose {VLLM}"
        )


def _engine_options(group: LoweredGroup, media: tuple[Medium, ...]) -> EngineOptions:
    """What the metrics of an engine depend on, with KV in these media below the devices."""
    speculation = group.engine.speculation
    drafts = 0 if speculation is None else speculation.tokens
    decodes = group.native.role == _native.Role.DECODE
    if group.engine.kv_offloading_size:
        media = (*media, "CPU")
    if decodes and not media:
        return EngineOptions(drafts, "p2p")
    return EngineOptions(drafts, "external_unspecified" if decodes else _source(media))


def _source(media: tuple[Medium, ...]) -> str:
    return SOURCES.get(media, "external_unspecified")
