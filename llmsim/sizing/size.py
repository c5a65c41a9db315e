"""`llmsim.size`: how many devices a load with latency targets needs, and how to lay them out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.api.python_values import check_kinds, pairs_text
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.errors import InputError, LlmsimError, nearest
from llmsim.sizing.answer import Answer
from llmsim.sizing.capacity import FEWEST_VERIFIED, able
from llmsim.sizing.load import CONCURRENCY, RATE, TRACE, Load
from llmsim.sizing.measure import Bench, is_servable
from llmsim.sizing.plan import Option
from llmsim.sizing.search.found import NEXT, Candidate
from llmsim.sizing.search.question import Costs, Question
from llmsim.sizing.search.search import search
from llmsim.sizing.shapes import AFD, ARCHITECTURES, KNOWN
from llmsim.sizing.targets import NO_CLASS, Targets
from llmsim.sizing.workers.watch import NOBODY, Watch
from llmsim.sizing.workers.workers import Workers

if TYPE_CHECKING:
    import numpy as np

KINDS = {
    **dict.fromkeys(("model", "dataset"), Path),
    **dict.fromkeys(("device", "architecture"), list[str]),
    **dict.fromkeys(("rate", "percentile"), float),
    **dict.fromkeys(("concurrency", "max_devices", "devices_per_node", "seed", "jobs"), int),
    **dict.fromkeys(("input", "output_tokens", "classes", "engine_profile"), str),
}
"""What the arguments of `size` are."""
INPUT, OUTPUT_TOKENS = "fixed:1000", "fixed:200"
"""Lengths of prompts and answers that are not given."""
SEEDS = 5
LENGTHS = 1000
"""Requests of a drawn load that show its lengths and classes."""
ANY = "any"
LARGEST_NODE = 128
MOST_JOBS = 1024
ENGINES = ("vllm", SGLANG)


def size(
    model: str,
    device: str | Sequence[str],
    *,
    slo: str | Mapping[str, float],
    rate: float | None = None,
    concurrency: int | None = None,
    dataset: str | PathLike[str] | None = None,
    input: str | None = None,
    output_tokens: str | None = None,
    classes: str = "",
    percentile: float = 99.0,
    max_devices: int = 512,
    architecture: str | Sequence[str] = ARCHITECTURES,
    devices_per_node: int = 8,
    engine_profile: str = "",
    seed: int = 1,
    jobs: int = 1,
    watch: Watch = NOBODY,
) -> Answer:
    """The cheapest deployment of a model that serves a load within latency targets.

    `device` is one device, several, or "any". The load is `rate` (requests per second),
    `concurrency` (clients of a closed loop) or `dataset` (a trace at its own pace); `input` and
    `output_tokens` are distributions of lengths such as "lognormal:500", in place of 1,000 and 200
    tokens; a trace has its own. `slo` is "ttft:1000,tpot:40" (ms) or a mapping, which the
    `percentile` of all requests has to meet, or "chat=ttft:300;batch=e2el:60000", which that of
    each class has to meet; `classes` puts requests into classes, as "chat:0.7|batch:0.3", of a
    trace they are its own. `engine_profile` is the release that serves, such as
    "sglang-0.5.23"; vLLM without it. `watch` is told how many deployments are measured. Raises
    InputError for what cannot be asked; where nothing meets the targets, the answer's `best` is
    None.
    """
    check_kinds(KINDS, locals())
    slo = _slo_text(slo)
    dataset = None if dataset is None else fspath(dataset)
    _between("jobs", jobs, 0, MOST_JOBS)
    drawn_by = {"input": input, "output_tokens": output_tokens, "classes": classes or None}
    load = _load(rate, concurrency, dataset, drawn_by, seed)
    _check_prompts(_known_model(model), load)
    architectures = _architectures(architecture)
    present = load.classes_of(0 if dataset else LENGTHS)
    question = Question(
        model,
        _devices(device),
        load,
        Targets.parse(slo, percentile, _classes(present)),
        architectures,
        _between("max_devices", max_devices, 1, 1 << 16),
        _between("devices_per_node", devices_per_node, 1, LARGEST_NODE),
        _server(engine_profile, architectures),
    )
    with Workers(jobs, watch=watch) as workers:
        return _answered(question, workers)


def _answered(question: Question, workers: Workers) -> Answer:
    """The answer, with the ranges of its best deployment."""
    prices = {one: price_of(one) for one in question.devices}
    found = search(question, workers, Costs(prices))
    answer = Answer(found, prices)
    if answer.best is None:
        found.missing[:NEXT] = _with_sources(found.missing[:NEXT], question, workers)
        return answer
    intervals = _intervals(answer.best, question, workers)
    return replace(
        answer,
        intervals=intervals,
        seeds=SEEDS if intervals else 0,
        real_servers=_real_servers(answer.best, question),
    )


def _slo_text(slo: object) -> str:
    """Targets as a text; raises InputError for what is neither a text nor a mapping."""
    text = pairs_text(slo)
    if not isinstance(text, str):
        raise InputError(
            f'slo is {type(text).__name__}; give a text such as "ttft:500,tpot:30"', field="slo"
        )
    return text


def _load(
    rate: float | None,
    concurrency: int | None,
    dataset: str | None,
    drawn_by: Mapping[str, str | None],
    seed: int,
) -> Load:
    given = [
        name
        for name, value in (("rate", rate), ("concurrency", concurrency), ("dataset", dataset))
        if value is not None
    ]
    if len(given) != 1:
        by = f"is given by {' and '.join(given)}" if given else "is not given"
        raise InputError(
            f"the load {by}; give exactly one of rate, concurrency and dataset",
            field=given[0] if given else "rate",
        )
    if dataset is not None:
        _check_nothing_is_drawn(drawn_by)
        return Load(TRACE, 1.0, dataset=dataset, seed=seed)
    input = drawn_by["input"] or INPUT
    output_tokens = drawn_by["output_tokens"] or OUTPUT_TOKENS
    classes = drawn_by["classes"] or ""
    if concurrency is not None:
        clients = float(_between("concurrency", concurrency, 1, 1 << 20))
        return Load(CONCURRENCY, clients, input, output_tokens, seed=seed, classes=classes)
    assert rate is not None
    if not (math.isfinite(rate) and 1e-3 <= rate <= 1e5):
        raise InputError(
            f"rate is {rate:g}; it must be from 0.001 to 100000 requests per second",
            field="rate",
            value=rate,
        )
    return Load(RATE, float(rate), input, output_tokens, seed=seed, classes=classes)


def _check_nothing_is_drawn(drawn_by: Mapping[str, str | None]) -> None:
    """Raises InputError for draws of lengths or classes beside a trace."""
    for name, value in drawn_by.items():
        if value is not None:
            raise InputError(
                f"{name} is {value} beside a dataset, whose requests have their own; leave {name} "
                "out, or give rate or concurrency in place of the dataset",
                field=name,
                value=value,
            )


def _check_prompts(model: str, load: Load) -> None:
    """Raises InputError for distributions and traces that are none, and where the model can serve
    no request.
    """
    from llmsim.model import load_model

    prompts, _ = load.lengths(0 if load.dataset else LENGTHS)
    if not is_servable(model, prompts).any():
        raise InputError(
            f"all prompts have {int(prompts.min()):,} tokens or more, but {model} serves "
            f"{load_model(model).max_position_embeddings:,}, the answer included; give shorter "
            "ones, or a model of longer contexts",
            field="dataset" if load.dataset else "input",
        )


def _classes(present: "np.ndarray | None") -> list[str]:
    """The classes of a load; "" for requests that are in none."""
    names = [] if present is None else sorted(set(present.tolist()))
    return ["" if name == NO_CLASS else name for name in names]


def _server(engine_profile: str, architectures: Sequence[str]) -> tuple[Option, ...]:
    """The options of a plan that say which engine serves."""
    if not engine_profile:
        return ()
    load_profile(engine_profile)
    engine = engine_profile.split("-")[0]
    if engine not in ENGINES:
        raise InputError(
            f"engine_profile is {engine_profile}; llmsim size plans servers of "
            f"{' and '.join(ENGINES)}",
            field="engine_profile",
            value=engine_profile,
        )
    if engine != SGLANG:
        return (("engine_profile", engine_profile),)
    if AFD in architectures:
        raise InputError(
            f"architecture is {AFD} beside engine_profile {engine_profile}; attention and FFN "
            "apart run with vLLM's scheduler, so leave one of them out",
            field="architecture",
            value=AFD,
        )
    return (("scheduler", SGLANG), ("engine_profile", engine_profile))


def _between(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InputError(
            f"{name} is {value}; it must be from {low} to {high}", field=name, value=value
        )
    return value


def _known_model(model: str) -> str:
    from llmsim.model import load_model

    load_model(model)
    return model


def _devices(device: str | Sequence[str]) -> tuple[str, ...]:
    """The devices that are asked about; `any`: every bundled GPU with a price."""
    from llmsim.model.hardware import data_sheet, hardware_names

    words = device.split(",") if isinstance(device, str) else list(device)
    names = [word.strip() for word in words if word.strip()]
    if not names:
        raise InputError("device is empty; name one, such as H100, or any", field="device")
    if names == [ANY]:
        return tuple(name for name in hardware_names() if price_of(name) is not None)
    for name in names:
        data_sheet(name)
    return tuple(dict.fromkeys(names))


def price_of(device: str) -> float | None:
    """USD of one device and hour, of its data sheet or on the list; None where neither has one."""
    from llmsim.lowering.energy import prices
    from llmsim.model.hardware import data_sheet

    return prices.price_of(data_sheet(device)).usd_per_device_hour


def _architectures(given: str | Sequence[str]) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else list(given)
    names = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not names:
        raise InputError(f"architecture is empty; give {', '.join(KNOWN)}", field="architecture")
    for name in names:
        if name not in KNOWN:
            raise InputError(
                f'architecture is "{name}"{nearest(name, KNOWN)}; give {", ".join(KNOWN)}',
                field="architecture",
                value=name,
            )
    return names


def _with_sources(
    nearest: Sequence[Candidate], question: Question, workers: Workers
) -> list[Candidate]:
    """Deployments that were run, with the sources of their times."""
    return [
        workers.ask("llmsim.sizing.size:sourced", (one, question))
        if one.run is not None and one.run.sources is None
        else one
        for one in nearest
    ]


def sourced(bench: Bench, task: tuple[Candidate, Question]) -> Candidate:
    """A deployment with the sources of the times of its run."""
    one, question = task
    assert one.run is not None
    at, percentiles = one.run, (question.targets.percentile,)
    run = bench.measure(one.plan, question.load, at.level, at.requests, percentiles, sources=True)
    return replace(one, run=replace(at, sources=run.sources))


def _intervals(
    best: Candidate, question: Question, workers: Workers
) -> dict[str, tuple[float, float]]:
    """The range of each metric's percentile over several draws of the load; empty for a trace."""
    if question.load.kind == TRACE:
        return {}
    seeds = [question.load.seed + i for i in range(SEEDS)]
    tasks = [(best.plan, replace(question, load=replace(question.load, seed=s))) for s in seeds]
    runs = list(workers.map("llmsim.sizing.size:drawn", tasks))
    found: dict[str, tuple[float, float]] = {}
    for name, _ in question.targets.most_ms:
        values = [run[name] for run in runs if name in run]
        if values:
            found[name] = (min(values), max(values))
    return found


def drawn(bench: Bench, task: "tuple[object, Question]") -> dict[str, float]:
    """The percentiles of one draw of the load."""
    plan, question = task
    try:
        found, _, _ = able(
            bench,
            plan,  # type: ignore[arg-type]
            question.load,
            question.targets,
            fewest=FEWEST_VERIFIED,
        )
    except LlmsimError:
        return {}
    return {} if found is None else found.at(question.targets.percentile)


def _real_servers(best: Candidate, question: Question) -> dict[str, Any] | None:
    """What nine in ten real servers like a deployment have; None where no published one is like
    it.
    """
    from llmsim.api.checked.run_inputs import Recorded, RunInputs
    from llmsim.api.cluster import Cluster
    from llmsim.api.report import summary_of
    from llmsim.api.run import prepared_run, settings_of
    from llmsim.simulation.run import simulate
    from llmsim.sizing.emit import cluster_fields

    assert best.run is not None
    dataset, options = question.load.run_options(best.run.requests)
    inputs = RunInputs(Cluster.of(cluster_fields(best.plan)), dataset, options)
    prepared = prepared_run(inputs, settings_of(inputs), Recorded(steps=False, series=False))
    results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    found: dict[str, Any] | None = summary_of(results, prepared.lowered, prepared.objectives).get(
        "system_error"
    )
    return found
