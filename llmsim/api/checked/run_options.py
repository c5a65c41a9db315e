"""The checks of a run's options: from what was given to what a run takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from llmsim.api.checked.durations import horizon_ps, interval_ps
from llmsim.api.checked.given import Given
from llmsim.api.checked.run_inputs import options_asked
from llmsim.compat import llmservingsim as refused
from llmsim.config.engine.schedulers import SCHEDULERS
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llmsim.costs.experts.routing import ExpertRouting
    from llmsim.lowering import Calibration
    from llmsim.lowering.kv.tiers import KvTierOptions
    from llmsim.results.requests.classes import Objectives
    from llmsim.rounds.selection import GraphSelection
    from llmsim.routing import RouterSpec
    from llmsim.scheduling.policies import PolicySpecs

LOG_LEVELS = ("WARNING", "INFO", "DEBUG")
COST_SOURCES = ("auto", "bundle", "external", "silicon", "roofline")
REQUIRED = ("measured", "interpolated", "extrapolated", "scaled")
COLLECTIVES = ("auto", "measured", "links", "nccl")
DEFAULT_PROFILES = Path("profiler/perf")
"""Searched after the --profile-dir folders, relative to the working directory, as LLMServingSim
does.
"""
SWITCHES = ("enable_local_offloading", "enable_attn_offloading", "enable_sub_batch_interleaving")


class RunOptions(Struct, frozen=True):
    """The checked options of a run."""

    cluster: Path
    dataset: str
    num_reqs: int
    seed: int
    engine: dict[str, Any]
    router: "RouterSpec"
    expert_routing: "ExpertRouting"
    profile_dirs: tuple[Path, ...]
    profile_dirs_given: bool
    cost_source: str
    collectives: str
    network: str
    exact: bool
    output: Path | None
    run_dir: Path | None
    as_json: bool
    log_interval_ps: int
    log_level: str
    decode_router: "RouterSpec"
    session_affinity: bool = True
    """Later calls of a session that reasons go where its first one went."""
    kv_transfer: str | None = None
    kv_transfer_mode: str | None = None
    arrivals: Path | None = None
    """A recorded log whose true arrivals replace the trace's."""
    timeline: Path | None = None
    graphs: "GraphSelection | None" = None
    """The steps whose graphs are written."""
    input_files: Path | None = None
    """Where the list of all files that were read is written."""
    policies: "PolicySpecs | None" = None
    tiers: "KvTierOptions | None" = None
    check_every_step: bool = False
    cost_tables: tuple[Path, ...] = ()
    cost_plugin: str = ""
    """A cost source in Python, or a blackbox; "": one of the names."""
    predict_attention: bool = False
    require: str = ""
    """The least provenance that a time may have; "": any."""
    max_concurrency: int = 0
    think_time: str | None = None
    timeout_s: float | None = None
    horizon_ps: int | None = None
    outside: str = ""
    """The program that times the steps, "strict" or "external:PATH"; "": none."""
    collectives_contend: bool = True
    """Whether collectives of groups that share links slow each other."""
    disabled_terms: tuple[str, ...] = ()
    calibration: "Calibration | None" = None
    allow_plugins: bool = True
    objectives: "Objectives | None" = None
    """Latencies that goodput asks for; None: it was not given."""
    without_effect: tuple[str, ...] = ()
    """Options that were given for what this simulator does not have."""
    verbose: bool = False
    """Everything is printed instead of the headline."""
    quiet: bool = False
    """No text and no progress is printed."""
    asked: "Mapping[str, Any]" = field(default_factory=dict)
    """The options that differ from their defaults, as `llmsim.run` takes them."""
    switches: frozenset[str] = frozenset()
    """Offloading keys of an instance that are on unless it says otherwise."""


def checked(given: Given) -> RunOptions:
    """What `run` was given; raises InputError for what cannot be.

    `enable_block_copy` is accepted for old command lines and not read: equal blocks are always
    priced once.
    """
    from llmsim.config.plugins import plugins_allowed

    with plugins_allowed(given.allow_plugins):
        return _checked(given)


def _checked(given: Given) -> RunOptions:
    engine = _engine(given)
    source = given.cost_source
    outputs = {"output": given.output, "run_dir": given.run_dir, "timeline": given.timeline}
    named = refused.named_outputs(outputs, given.run_id)
    if not given.dataset:
        raise InputError(
            "--dataset is empty; name a trace file, or a generator such as "
            "synthetic:n=100,rate=10,..."
        )
    return RunOptions(
        cluster=given.cluster_config,
        dataset=given.dataset,
        num_reqs=_at_least("--num-reqs", given.num_reqs, 0),
        seed=_at_least("--seed", given.seed, 0),
        engine=engine,
        router=_router(given.request_routing_policy, "--request-routing-policy"),
        decode_router=_router(given.decode_routing_policy, "--decode-routing-policy"),
        session_affinity=given.session_affinity,
        kv_transfer=given.kv_transfer,
        kv_transfer_mode=given.kv_transfer_mode,
        expert_routing=_expert_routing(given.expert_routing_policy, given.seed),
        profile_dirs=_profile_dirs(given.profile_dir or []),
        profile_dirs_given=bool(given.profile_dir),
        cost_source="auto" if ":" in source else _named_source(source),
        cost_plugin=source if ":" in source or source not in COST_SOURCES else "",
        cost_tables=refused.cost_tables(given.cost_table or []),
        predict_attention=given.enable_attn_prediction,
        require="" if given.require is None else _one_of("--require", given.require, REQUIRED),
        collectives=_one_of("--collective-costs", given.collective_costs, COLLECTIVES),
        network=refused.network(given.network_backend),
        exact=given.exact,
        outside=_outside(given),
        **named,
        graphs=None if given.graphs is None else _graphs(given.graphs),
        as_json=given.as_json,
        log_interval_ps=interval_ps(given.log_interval),
        log_level=_log_level(given.log_level),
        arrivals=given.arrivals,
        allow_plugins=given.allow_plugins,
        input_files=given.input_files,
        policies=_policies(engine, given),
        tiers=_tiers(given),
        check_every_step=given.check_every_step,
        max_concurrency=_at_least("--max-concurrency", given.max_concurrency, 0),
        think_time=given.think_time,
        timeout_s=given.request_timeout,
        horizon_ps=horizon_ps(given.horizon),
        without_effect=refused.without_effect(
            given.inputs_root, given.cleanup_inputs, given.run_id, named=named != outputs
        ),
        switches=frozenset(key for key in SWITCHES if getattr(given, key)),
        collectives_contend=_contends(given.collective_contention),
        disabled_terms=tuple(dict.fromkeys(given.disable_term or ())),
        calibration=_calibration(given.calibration),
        objectives=_objectives(given.goodput),
        verbose=given.verbose,
        quiet=_quiet(given),
        asked=options_asked(given),
    )


def _contends(text: str) -> bool:
    return _one_of("--collective-contention", text, ("on", "off")) == "on"


def _outside(given: Given) -> str:
    outside = refused.outside_network(given.network_backend)
    if outside and given.exact:
        raise InputError(
            f"--exact and --network-backend {outside} exclude each other; leave one out"
        )
    return outside


def _graphs(text: str) -> "GraphSelection":
    from llmsim.rounds.selection import parse_selection

    return parse_selection(text)


def _quiet(given: Given) -> bool:
    if given.quiet and given.verbose:
        raise InputError("--quiet and --verbose exclude each other; give one of them")
    return given.quiet


def _engine(given: Given) -> dict[str, Any]:
    """The options of the engine, `--fp`, `--gen` and `--prioritize-prefill` of older command lines
    among them.
    """
    fp, engine = given.fp, dict(given.engine_options)
    if fp is not None:
        if "dtype" in engine:
            raise InputError(
                f"--fp {fp} and --dtype {engine['dtype']} say the same thing twice; give one of "
                "them"
            )
        engine["dtype"] = refused.fp_dtype(fp)
    for name, read in READ_FROM_TEXT.items():
        if name in engine:
            engine[name] = read(f"--{name.replace('_', '-')}", engine[name])
    if given.prioritize_prefill:
        engine["prioritize_prefill"] = True
    if given.gen or given.skip_prefill:
        engine["skip_prefill"] = True
    return engine


def _sizes(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(
            f"{option} is {text!r:.60}; give whole numbers with commas between them, as 1,2,4,8"
        )
    return tuple(int(part) for part in parts)


def _json_object(option: str, text: "str | dict[str, Any]") -> dict[str, Any]:
    """The object of a JSON text; callers from Python may give the object."""
    import json

    if isinstance(text, dict):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{option} is {text!r:.60}, which is no JSON ({error}); give a JSON object"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{option} is {text!r:.60}; give a JSON object")
    return value


READ_FROM_TEXT: "Mapping[str, Callable[[str, str], Any]]" = {
    "cudagraph_capture_sizes": _sizes,
    "speculative_config": _json_object,
}
"""Engine options whose text on the command line is a list or an object."""


def _named_source(name: str) -> str:
    """One of ours, else "auto": the name of a plug-in, which is looked up when costs
    are compiled.
    """
    if name in COST_SOURCES:
        return name
    from importlib.metadata import entry_points

    if name in entry_points(group="llmsim.cost_sources").names:
        return "auto"
    return _one_of("--cost-source", name, COST_SOURCES)


def _calibration(path: Path | None) -> "Calibration | None":
    if path is None:
        return None
    from llmsim.lowering.adjust.calibration import load_calibration

    return load_calibration(path)


def _objectives(given: list[str] | None) -> "Objectives | None":
    if not given:
        return None
    from llmsim.results.requests.classes import parse_objectives
    from llmsim.results.requests.goodput import SESSION_TARGET, TARGETS

    return parse_objectives(given, known=(*TARGETS, SESSION_TARGET))


def _profile_dirs(given: list[Path]) -> tuple[Path, ...]:
    for folder in given:
        if not folder.is_dir():
            raise InputError(
                f'--profile-dir "{folder}" is not a folder; name one that holds '
                "<hardware>/<model>/.../tp<N>/"
            )
    return (*given, *([DEFAULT_PROFILES] if input_files.is_folder(DEFAULT_PROFILES) else []))


def _expert_routing(text: str, seed: int) -> "ExpertRouting":
    from llmsim.costs.experts.routing import parse_expert_routing

    return parse_expert_routing(text, max(seed, 0))


def _router(text: str, option: str) -> "RouterSpec":
    from llmsim.routing import parse_router

    return parse_router(text, option)


def _tiers(given: Given) -> "KvTierOptions | None":
    storage, shared = given.prefix_storage, given.enable_prefix_sharing
    write, eviction, chunk_tokens = given.kv_tier_write, given.kv_tier_eviction, given.kv_chunk_size
    recall = given.kv_tier_recall
    if (storage, shared, write, eviction, chunk_tokens, recall) == (
        None,
        False,
        None,
        None,
        None,
        None,
    ):
        return None
    from llmsim.lowering.kv.tiers import parse_tiers

    return parse_tiers(
        storage,
        shared=shared,
        write=write,
        eviction=eviction,
        chunk_tokens=chunk_tokens,
        recall=recall,
    )


def _policies(engine: dict[str, Any], given: Given) -> "PolicySpecs | None":
    """The policies that are classes or limits; a scheduler that is a class is taken out of the
    engine's options.
    """
    queue_order, victim = given.queue_order, given.preemption_victim
    eviction, admission = given.cache_eviction, given.admission
    scheduler = _scheduler_class(engine.get("scheduler"))
    if (queue_order, victim, eviction, admission, scheduler) == (None,) * 5:
        return None
    from llmsim.scheduling.policies import parse_policies

    if scheduler is not None:
        del engine["scheduler"]
        others = {
            "--queue-order": queue_order,
            "--preemption-victim": victim,
            "--cache-eviction": eviction,
        }
        for option, value in others.items():
            if value is not None:
                raise InputError(
                    f"{option} {value}: the scheduler {scheduler} decides that itself; remove "
                    "one of them"
                )
        if engine.get("async_scheduling"):
            raise InputError(
                f"--async-scheduling: the scheduler {scheduler} has one batch in flight; remove it"
            )
        engine["async_scheduling"] = False
    if queue_order is not None and "scheduling_policy" in engine:
        raise InputError(
            f"--queue-order {queue_order} and --scheduling-policy both order the queue; give one "
            "of them"
        )
    return parse_policies(
        queue_order=queue_order,
        victim=victim,
        eviction=eviction,
        admission=admission,
        scheduler=scheduler,
    )


def _scheduler_class(name: str | None) -> str | None:
    """The scheduler where it is a plug-in: `module:Class`, or a name that an installed package
    offers.
    """
    if name is None or name in SCHEDULERS:
        return None
    from llmsim.config.plugins import entry_points
    from llmsim.scheduling.policies import SCHEDULER

    return name if ":" in name or name in entry_points(SCHEDULER.group) else None


def _log_level(name: str) -> str:
    return name.upper() if name.upper() in LOG_LEVELS else _one_of("--log-level", name, LOG_LEVELS)


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(
            f'{option} is "{value}"{nearest(value, known)}; it may be {", ".join(known)}'
        )
    return value


def _at_least(option: str, value: int, least: int) -> int:
    if value < least or value >= 1 << 63:
        raise InputError(f"{option} is {value}; it must be at least {least} and below 2^63")
    return value
