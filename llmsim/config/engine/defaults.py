"""Fills in the engine's options that follow from others, by the rules of its version."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from llmsim.config.engine.profile import EngineProfile, load_profile, profile_names
from llmsim.config.engine.schedulers import KINDS, LORA_RANKS, SGLANG, VERSIONED, VLLM
from llmsim.config.engine.sglang.drafts import with_branches
from llmsim.config.engine.speculative import Speculation, resolve_speculation
from llmsim.config.errors import InputError

Positions = dict[str, Callable[[str], str]]
"""For each given option, how to name its position."""


class StepLimits(Struct, frozen=True):
    """Limits of a step beyond the token budget, in tokens and sequences
    (llmsim/native/scheduler/limits/step_limits.h).
    """

    adaptive_threshold: bool
    lone_prompt_uncapped: bool
    pads_new_decodes: bool
    pads_hits: bool
    pads_within_context: bool
    paces_itself: bool
    input_budget: int
    draft_slots: int
    max_num_active_seqs: int
    prefill_schedule_interval: int


def settle_sequences(
    values: dict[str, Any], origin: dict[str, str], positions: Positions, profile: EngineProfile
) -> None:
    """SGLang runs few requests at once where it verifies drafts and nobody says how many
    (`_handle_speculative_decoding`).
    """
    most, drafts = profile.max_num_seqs_with_drafts, values["speculative_config"] is not None
    if drafts and most > 0 and "max_num_seqs" not in positions:
        values["max_num_seqs"] = most
        origin["max_num_seqs"] = f"engine profile {profile.name} (drafts)"


def settle_batch(values: dict[str, Any], origin: dict[str, str], positions: Positions) -> None:
    """vLLM: a defaulted max_num_seqs is cut to the token budget; a given one beyond the budget is
    an error.
    """
    tokens, sequences = values["max_num_batched_tokens"], values["max_num_seqs"]
    if sequences == 0:
        # No limit: a step cannot hold more sequences than tokens.
        values["max_num_seqs"] = tokens
    elif values["scheduler"] == SGLANG:
        return  # no budget limits its steps of decodes
    elif sequences > tokens:
        if "max_num_seqs" in positions:
            position = positions["max_num_seqs"]("max_num_seqs")
            raise InputError(
                f"{position} is {sequences}, more than max_num_batched_tokens, which is {tokens} "
                f"({origin['max_num_batched_tokens']}); every running sequence needs a token of "
                "the budget, so lower max_num_seqs or raise max_num_batched_tokens"
            )
        values["max_num_seqs"] = tokens
        origin["max_num_seqs"] += ", cut to max_num_batched_tokens"


def check_version(values: Mapping[str, Any], positions: Positions, profile: EngineProfile) -> None:
    """Options that this version of the engine does not have are refused, not ignored."""
    for name in VERSIONED:
        if name in positions and name not in profile.options:
            raise InputError(f"{positions[name](name)} {_not_of(name, profile)}")
    _check_adapters(values, positions)
    if values["max_num_active_seqs"] is not None and values["max_num_seqs"]:
        active, most = values["max_num_active_seqs"], values["max_num_seqs"]
        if active > most:
            raise InputError(
                f"{positions['max_num_active_seqs']('max_num_active_seqs')} is {active}, more than "
                f"max_num_seqs, which is {most}; lower it"
            )


def _not_of(name: str, profile: EngineProfile) -> str:
    """Says that a profile does not have an option, and what to do instead."""
    having = [known for known in profile_names() if name in load_profile(known).options]
    if name.startswith("kv_offloading"):
        # Releases of vLLM from the end of 2025 on have the option; their rules were not compared.
        return (
            f"is modelled by the rules of {', '.join(having)} alone, and not of {profile.name}; "
            "choose such an engine_profile, or keep KV in host memory by prefix_storage CPU "
            "(docs/explanation/kv_tiers.md)"
        )
    return (
        f"is no option of {profile.name}; remove it, or choose an engine_profile that has it "
        f"({', '.join(having)})"
    )


def _check_adapters(values: Mapping[str, Any], positions: Positions) -> None:
    """vLLM 0.33: `LoRAConfig`."""
    for name in ("max_lora_rank", "max_cpu_loras", "fully_sharded_loras"):
        if values[name] and values["max_loras"] is None:
            raise InputError(
                f"{positions[name](name)} is given, but max_loras is not, so that the engine takes "
                "no adapters; give both, or remove it"
            )
    rank, kept = values["max_lora_rank"], values["max_cpu_loras"]
    if rank is not None and rank not in LORA_RANKS:
        raise InputError(
            f"{positions['max_lora_rank']('max_lora_rank')} is {rank}, but vLLM takes one of "
            f"{', '.join(map(str, LORA_RANKS))}; give the next larger one"
        )
    if kept is not None and kept < values["max_loras"]:
        raise InputError(
            f"{positions['max_cpu_loras']('max_cpu_loras')} is {kept}, less than max_loras, which "
            f"is {values['max_loras']}; raise it, since adapters in slots are in host memory, too"
        )


def settle_speculation(
    values: dict[str, Any], origin: dict[str, str], positions: Positions, profile: EngineProfile
) -> None:
    """vLLM 0.24: `_set_max_num_scheduled_tokens`; asynchronous scheduling needs drafts that come
    from the devices.
    """
    config = values.pop("speculative_config")
    origin["speculation"] = origin.pop("speculative_config")
    speculation = values["speculation"] = (
        None if config is None else resolve_speculation(config, values["max_num_seqs"])
    )
    tokens, slots = values["max_num_batched_tokens"], 0
    if speculation is not None:
        # With a second budget the slots of drafts are counted step by step.
        slots = 0 if profile.second_token_budget else speculation.slots * values["max_num_seqs"]
        _refuse_speculation(values, positions)
        if values["scheduler"] == SGLANG:
            slots = 0  # no budget limits its steps of decodes
            speculation = values["speculation"] = with_branches(speculation, values, positions)
        _check_drafts(speculation, values, positions, profile)
        _wait_for_drafts(speculation, values, origin, positions, profile)
    given = values["max_num_scheduled_tokens"]
    if given is None:
        values["max_num_scheduled_tokens"] = tokens - slots
        origin["max_num_scheduled_tokens"] = origin["max_num_batched_tokens"]
    if values["max_num_scheduled_tokens"] <= 0 or (given is not None and given + slots > tokens):
        position = positions["speculative_config" if slots else "max_num_scheduled_tokens"]
        what = "speculative_config" if slots else "max_num_scheduled_tokens"
        raise InputError(
            f"{position(what)}: "
            f"{f'drafting adds up to {slots} tokens to a step, and ' if slots else ''}"
            f"{given if given is not None else 0} scheduled ones do not fit beside them into "
            "max_num_batched_tokens "
            f"{tokens} ({origin['max_num_batched_tokens']}); raise it, or lower max_num_seqs or "
            "num_speculative_tokens"
        )


def _check_drafts(
    speculation: Speculation,
    values: Mapping[str, Any],
    positions: Positions,
    profile: EngineProfile,
) -> None:
    """Raises InputError for modules that the release lacks, and for adapters whose verifications
    may not fit into a step.
    """
    tokens = values["max_num_batched_tokens"]
    if speculation.modules > 1 and not profile.schedules_by("reads_ahead"):
        raise InputError(
            f"{positions['speculative_config']('speculative_config')} asks for "
            f"{speculation.modules} modules, which {profile.name} is not modelled with; remove "
            "num_nextn_predict_layers, or choose the engine_profile vllm-0.31 or a later one"
        )
    verified = values["max_num_seqs"] * (1 + speculation.tokens)
    if values["max_loras"] is not None and tokens < verified:
        raise InputError(
            f"{positions['max_loras']('max_loras')} is given, but vLLM runs adapters with "
            f"drafts only where max_num_batched_tokens, which is {tokens}, holds the "
            f"{verified} tokens of all verifications; raise it, or lower max_num_seqs or "
            "num_speculative_tokens"
        )


def _wait_for_drafts(
    speculation: Speculation,
    values: dict[str, Any],
    origin: dict[str, str],
    positions: Positions,
    profile: EngineProfile,
) -> None:
    """No step is scheduled ahead of drafts that come from the host; InputError where asked for."""
    by_ngram = speculation.method == "ngram"
    waits_for_drafts = by_ngram and not profile.v2_runner.drafts_ahead_by("ngram")
    if waits_for_drafts and values["async_scheduling"]:
        if "async_scheduling" in positions:
            raise InputError(
                f"{positions['async_scheduling']('async_scheduling')} is true, but "
                f"{profile.name} schedules no step ahead of drafts by ngram; remove it, or set "
                "it false"
            )
        values["async_scheduling"], origin["async_scheduling"] = (
            False,
            "off with speculation by ngram",
        )


def _refuse_speculation(values: Mapping[str, Any], positions: Positions) -> None:
    position = positions["speculative_config"]("speculative_config")
    if "speculative_config" in KINDS[values["scheduler"]].lacks:
        raise InputError(
            f"{position} is an option of the scheduler {VLLM}, "
            f"not of {values['scheduler']}; remove it"
        )


def settle_limits(values: dict[str, Any], origin: dict[str, str], profile: EngineProfile) -> None:
    """What limits a step beyond its budget, by the rules of the engine's version."""
    speculation = values["speculation"]
    second = profile.second_token_budget
    values["limits"] = StepLimits(
        adaptive_threshold=values.pop("long_prefill_token_threshold_adaptive"),
        lone_prompt_uncapped=profile.lone_prompt_uncapped,
        pads_new_decodes=profile.pads_new_decodes,
        pads_hits=profile.schedules_by("pads_hits"),
        pads_within_context=profile.schedules_by("pads_within_context"),
        paces_itself=profile.schedules_by("paces_itself"),
        input_budget=values["max_num_batched_tokens"] if second else 0,
        draft_slots=speculation.slots if speculation is not None and second else 0,
        max_num_active_seqs=values.pop("max_num_active_seqs") or 0,
        prefill_schedule_interval=values.pop("prefill_schedule_interval"),
    )
    for name in (
        "long_prefill_token_threshold_adaptive",
        "max_num_active_seqs",
        "prefill_schedule_interval",
    ):
        origin.pop(name)
    origin["limits"] = f"engine profile {profile.name}"


def settle_mode(
    values: dict[str, Any], origin: dict[str, str], positions: Positions, profile: EngineProfile
) -> None:
    """vLLM: enforce_eager means no graphs; a mode or sizes beside it are a contradiction here."""
    eager, mode = values["enforce_eager"], values["cudagraph_mode"]
    has_mode_of_graphs = mode not in (None, "NONE")
    captures_nothing = eager or mode == "NONE"
    for name, contradicts in (
        ("cudagraph_mode", eager and has_mode_of_graphs),
        ("cuda_graph_sizes", captures_nothing and "cuda_graph_sizes" in positions),
    ):
        if contradicts:
            other = "enforce_eager is true" if eager else "cudagraph_mode is NONE"
            raise InputError(
                f"{positions[name](name)} is given, but {other}, so that nothing is captured; "
                "remove one"
            )
    if mode is None:
        values["cudagraph_mode"] = "NONE" if eager else profile.cudagraph_mode
        origin["cudagraph_mode"] = (
            origin["enforce_eager"] if eager else f"engine profile {profile.name}"
        )
    _settle_launches(values, origin, profile, eager=eager)


def _settle_launches(
    values: dict[str, Any], origin: dict[str, str], profile: EngineProfile, *, eager: bool
) -> None:
    """Host times of launches, of compiled code or of operators in Python."""
    if values["launch_ns"] is None:
        values["launch_ns"] = profile.eager_launch_ns if eager else profile.launch_ns
        origin["launch_ns"] = profile.launch_origin(eager=eager)
    if values["fused_moe_ns"] is None:
        values["fused_moe_ns"] = 0 if eager else profile.fused_moe_ns
        origin["fused_moe_ns"] = profile.launch_origin(eager=eager)


def synchronous_origin(profile: EngineProfile) -> str:
    """The origin of host times that a synchronous engine takes from its profile."""
    return f"engine profile {profile.name}, synchronous"


def settle_host(
    values: dict[str, Any], origin: dict[str, str], positions: Positions, profile: EngineProfile
) -> None:
    """A synchronous engine leaves the device idle while the host works, which has prepared the next
    step then; an asynchronous one works while the device does.
    """
    ahead = "async_scheduling" in KINDS[values["scheduler"]].lacks
    for name in ("prepare_ns", "prepare_sequence_ns"):
        if values[name] is None:
            values[name] = getattr(profile, name) if values["async_scheduling"] else 0
            origin[name] = profile.launch_origin()
    _settle_reads(values, origin, profile)
    if values["async_scheduling"] or ahead:
        return
    for name in ("host_gap_ns", "host_sequence_ns"):
        if name not in positions:
            values[name] = getattr(profile, name)
            origin[name] = synchronous_origin(profile)


def _settle_reads(values: dict[str, Any], origin: dict[str, str], profile: EngineProfile) -> None:
    """Host times of the reads of KV that a decode instance posts."""
    for name in ("kv_read_ns", "kv_descriptor_ns"):
        if values[name] is None:
            values[name] = getattr(profile, name)
            origin[name] = f"engine profile {profile.name}"


def settle_frontend(
    values: Mapping[str, Any], positions: Positions, profile: EngineProfile
) -> None:
    """Options of the API server say something only of an endpoint."""
    endpoint = values["endpoint"]
    if endpoint is not None:
        if endpoint not in profile.frontend and values["api_request_ns"] is None:
            raise InputError(
                f"{positions['endpoint']('endpoint')} is {endpoint}, of which the engine profile "
                f"{profile.name} does not say what a request takes; give api_request_ns, or remove "
                "it"
            )
        return
    for name in ("api_server_count", "api_request_ns", "api_prompt_token_ns", "api_chunk_ns"):
        if name in positions:
            raise InputError(
                f"{positions[name](name)} is given, but no endpoint is, so that the API server "
                "takes no part; give endpoint (completions or chat), or remove it"
            )


def settle_graphs(values: dict[str, Any], origin: dict[str, str], profile: EngineProfile) -> None:
    tokens, speculation = values["max_num_batched_tokens"], values["speculation"]
    query, method = (1, "") if speculation is None else (speculation.verified, speculation.method)
    if "cuda_graph_sizes" in values:
        sizes = tuple(sorted({size for size in values["cuda_graph_sizes"] if size <= tokens}))
    else:
        sizes = profile.cuda_graphs.sizes(values["max_num_seqs"], tokens, query)
        origin["cuda_graph_sizes"] = f"engine profile {profile.name}"
    if values["cudagraph_mode"] == "NONE":
        sizes = ()
    elif not sizes:
        values["cudagraph_mode"] = "NONE"
        origin["cudagraph_mode"] += ", without a size that max_num_batched_tokens holds"
    values["cuda_graph_sizes"] = (
        profile.whole_graphs(sizes, query, method)
        if values["cudagraph_mode"] != "PIECEWISE"
        else sizes
    )
