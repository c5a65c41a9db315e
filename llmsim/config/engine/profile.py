"""Engine profiles: the defaults and graph sizes of one version of an engine, read from
`llmsim/presets/engines`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from llmsim.config.engine.latent_prompts import LatentPromptRule, latent_rules
from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.engine.version_rules import VERSION_RULES
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.config.units import BYTES_PER_GIB
from llmsim.presets import PRESETS_DIR

DEFAULT_PROFILE = "vllm-0.24"
DEFAULT_PROFILES = MappingProxyType({SGLANG: "sglang-0.5.23"})
"""Those of schedulers that another engine has: the release with which its schedule was compared."""
MODES_OF_DECODES = ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")
"""Modes of CUDA graphs that capture graphs of decodes apart from those of any batch."""
PROVEN = ("0.24", "0.25", "0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""Releases of vLLM whose schedule was compared with ours step by step, ascending."""
EVERY_ARCHITECTURE = "*"
"""In a profile's list of architectures: all of them."""
V2_FEATURES = (
    "prefill context parallelism",
    "sequence parallelism",
    "drafts by eagle3",
    "drafts by ngram",
    "drafts by draft_model",
    "drafts from one pass",
    "drafts by the size of the batch",
)
"""Features that a version of Model Runner V2 may lack."""
LACKED_IN_STAGES = ("drafts by eagle3",)
"""Those of them that it then lacks in pipeline stages alone."""
_FOLDER = PRESETS_DIR / "engines"


class DeviceClass(Struct, frozen=True):
    """Batch defaults of devices with enough memory whose name fits; the first class that fits
    holds.
    """

    label: str
    max_num_batched_tokens: int
    max_num_seqs: int
    min_memory_gib: int = 0
    name_contains: tuple[str, ...] = ()
    name_excludes: tuple[str, ...] = ()
    decode_graphs: tuple[int, ...] = ()
    """Sequences of the largest graph of decodes on fewer than four devices, and on four or more;
    empty: `GraphRule` alone says it.
    """

    def fits(self, hardware: str, memory_bytes: int) -> bool:
        """Names are compared in lower case, as the engine does with the driver's device name."""
        name = hardware.lower()
        return (
            memory_bytes >= self.min_memory_gib * BYTES_PER_GIB
            and all(part in name for part in self.name_contains)
            and not any(part in name for part in self.name_excludes)
        )


class GraphRule(Struct, frozen=True):
    """Which token counts get a captured graph."""

    tokens_per_sequence: int
    max_tokens: int
    first_sizes: tuple[int, ...]
    ranges: tuple[range, ...]
    captures_token_budget: bool
    by_architecture: Mapping[str, tuple[range, ...]] = field(default_factory=dict)
    """Models of which the engine captures other sizes by default, whatever `max_num_seqs` is."""
    max_tokens_blackwell: int = 0
    """`max_tokens` of cards of compute capability 10; 0: as of others."""
    captures_sequences: bool = False
    """`max_num_seqs` is a size, too; where drafts are verified, `captures_requests` says more."""
    captures_requests: bool = False
    """Where drafts are verified, as many decodes as sizes have tokens are sizes, too."""
    rounds_to_decodes: bool = True
    """Sizes are whole decodes; else only with drafts of Model Runner V1, and Model Runner V2 rounds
    those of decodes alone.
    """
    drafting: tuple[range, ...] = ()
    """SGLang's numbers of sequences whose drafts a graph verifies."""

    def sizes_of(
        self,
        architectures: Iterable[str],
        max_num_seqs: int,
        max_num_batched_tokens: int,
        query: int = 1,
        *,
        blackwell: bool = False,
    ) -> tuple[int, ...]:
        """`sizes` of a model of these architectures (names in config.json), on a card of compute
        capability 10 (`blackwell`) or another one.
        """
        special = [
            self.by_architecture[name] for name in architectures if name in self.by_architecture
        ]
        if not special:
            most = self.max_tokens_blackwell if blackwell else 0
            rule = replace(self, max_tokens=most or self.max_tokens)
            return rule.sizes(max_num_seqs, max_num_batched_tokens, query)
        ranges = special[0]
        widened = replace(
            self,
            ranges=ranges,
            max_tokens=max(size for sizes in ranges for size in sizes),
            captures_sequences=False,
            captures_requests=False,
        )
        return widened.sizes(widened.max_tokens, max_num_batched_tokens, query)

    def sizes(
        self, max_num_seqs: int, max_num_batched_tokens: int, query: int = 1
    ) -> tuple[int, ...]:
        """The capture sizes, ascending; never beyond the token budget. A decode has
        `query` tokens.
        """
        ceiling = min(max_num_seqs * query * self.tokens_per_sequence, self.max_tokens)
        most = min(ceiling, max_num_batched_tokens)
        found = {*self._up_to(most), *self._of_decodes(max_num_seqs, query)}
        if self.captures_token_budget:
            found.add(max_num_batched_tokens)
        return tuple(sorted(size for size in found if size <= most))

    def _of_decodes(self, max_num_seqs: int, query: int) -> Iterator[int]:
        """Sizes beside the others that batches of decodes have."""
        drafts = query > 1
        if self.captures_sequences and not drafts:
            yield max_num_seqs
        if self.captures_requests and drafts:
            requests = min(max_num_seqs, self.max_tokens)
            yield from (count * query for count in (*self._up_to(requests), requests))

    def _up_to(self, most: int) -> Iterator[int]:
        return (size for size in chain(self.first_sizes, *self.ranges) if size <= most)

    def decodes_up_to(self, sequences: int, query: int) -> tuple[int, ...]:
        """Tokens of SGLang's graphs of decodes of up to so many sequences, which are one of them;
        ascending. A decode has `query` tokens.

        Source: `generate_decode_cuda_graph_batch_sizes` of SGLang's arg_groups/cuda_graph_hook.py.
        """
        candidates = chain(*self.drafting) if query > 1 else chain(self.first_sizes, *self.ranges)
        found = {count for count in candidates if count <= sequences} | {sequences}
        return tuple(count * query for count in sorted(found))


class PrefillGraphs(Struct, frozen=True):
    """Graphs that steps with prompts replay, apart from those of decodes."""

    ranges: tuple[range, ...]
    """Captured token counts, as far as the token budget reaches."""
    latent_max_tokens: int
    """The largest one of models with multi-head latent attention; 0: they have none."""
    without: tuple[str, ...] = ()
    """Architectures (names in config.json) that have none."""
    alone: bool = False
    """Neither servers with roles nor ranks of data-parallel attention have any."""

    def sizes(
        self, max_num_batched_tokens: int, architectures: Iterable[str], *, latent: bool
    ) -> tuple[int, ...]:
        """The captured token counts of a model, ascending."""
        if any(name in self.without for name in architectures):
            return ()
        most = max_num_batched_tokens
        if latent:
            most = min(most, self.latent_max_tokens)
        return tuple(size for size in chain(*self.ranges) if size <= most)


class StaticMemory(Struct, frozen=True):
    """How an engine chooses the share of a device's memory for weights and KV where nobody says it:
    it leaves out what it expects steps and graphs to need, MiB.
    """

    constant_mib: float
    mib_per_prompt_token: float
    """For each token of the budget of prompts, at least for `least_prompt_tokens`."""
    least_prompt_tokens: int
    mib_per_decode: float
    """For each sequence of the largest graph of decodes."""
    mib_of_eight_devices: float
    """For a group of eight devices, and their share for fewer."""
    mib_per_decode_of_a_rank: float
    """With data-parallel attention the same for each rank, and `mib_per_decode_of_many` more beyond
    `many_decodes`.
    """
    mib_per_decode_of_many: float
    many_decodes: int
    mib_per_prefill_graph: float
    latent_prefill_graphs_mib: float
    """All graphs of prompts of a model with multi-head latent attention."""
    floor_mib: float
    """The least that devices of more than `floor_above_gib` leave out."""
    floor_above_gib: int
    drafts_mib: float
    """For a drafter with a model of its own."""
    by_use: bool = False
    """Nothing is left out for graphs that are not captured, in prefill servers for decodes, and in
    decode servers for prompts.
    """
    decodes_of_requests: bool = False
    """No graph of decodes has more sequences than the most running requests, where they are known.
    """


def multiples(sizes: tuple[int, ...], query: int) -> tuple[int, ...]:
    """Sizes rounded up to whole decodes of `query` tokens, as far as they stay within the largest.

    Source: vLLM 0.24, CompilationConfig.adjust_cudagraph_sizes_for_spec_decode.
    """
    if query <= 1 or not sizes:
        return sizes
    rounded = sorted({up for size in sizes if (up := -(-size // query) * query) <= sizes[-1]})
    return tuple(rounded)


class MemoryRules(Struct, frozen=True):
    """What the engine's memory profile charges besides what follows from shapes, bytes; origins are
    in the JSON.
    """

    kernel_bytes: int
    """Outside torch's allocator: loaded kernels and their workspaces."""
    first_capture_bytes: int
    """Allocated once by the first capture of a CUDA graph and kept."""
    graphs_charged: bool
    """Whether an estimate of the graphs' memory comes off the KV cache (vLLM: by default since
    0.21).
    """
    bytes_per_graph: int
    """Least that the estimate counts for each further graph."""
    sampler_bytes_per_logit: int = 12
    """What the sampler keeps of each entry of the logits beside the logits of the model."""
    sorting_bytes_per_logit: int = 0
    """The same without FlashInfer (`native_sampler`), where filters sort the logits; 0: they never
    do.
    """
    filters_in_blocks: bool = True
    """Top-k and top-p filters take a buffer for each running thread block instead of sorting."""
    ranks_bytes: int | None = None
    """What each rank of a group keeps for collectives; None: NCCL's buffers."""
    nvlink_ranks_bytes: int | None = None
    """The same on NVLink, where vLLM has all-reduces of its own; None: as elsewhere."""
    native_sampler: bool = False
    """FlashInfer is not installed."""
    profiles_a_batch: bool = True
    """The engine runs its largest batch before it sizes the KV cache, and what that takes comes off
    the share of the memory; else the share is what weights and KV may take.
    """

    @property
    def sampled_bytes_per_logit(self) -> int:
        """What the sampler of this installation keeps beside the logits of the model."""
        sorts = self.native_sampler and self.sorting_bytes_per_logit
        return self.sorting_bytes_per_logit if sorts else self.sampler_bytes_per_logit


class V2RunnerRules(Struct, frozen=True):
    """What vLLM's Model Runner V2 runs; it keeps one batch more in flight than there are pipeline
    stages.
    """

    architectures: tuple[str, ...] = ()
    """Names of `architectures` in config.json; EVERY_ARCHITECTURE stands for all of them."""
    lacks: tuple[str, ...] = ()
    """Features of `V2_FEATURES` that the runner does not run."""
    dense: bool = False
    """It is also the default for every model without experts and without layers that keep states.
    """
    alone: bool = False
    """Model Runner V1 does not run asynchronous pipeline stages in this version."""
    synchronous_drafts: tuple[str, ...] = ()
    """Methods whose drafts the runner makes, but without asynchronous scheduling."""

    def drafts_by(self, method: str) -> bool:
        """Whether every model's drafts of this method come from this runner, outside of pipeline
        stages.
        """
        feature = f"drafts by {method}"
        lacking = feature in self.lacks and feature not in LACKED_IN_STAGES
        return EVERY_ARCHITECTURE in self.architectures and not lacking

    def drafts_ahead_by(self, method: str) -> bool:
        """Whether asynchronous scheduling goes with drafts of this method from this runner."""
        return self.drafts_by(method) and method not in self.synchronous_drafts

    def takes(self, architectures: tuple[str, ...], *, dense: bool = False) -> bool:
        """Whether the runner is the default for a model of these architectures; `dense` models have
        neither experts nor layers that keep states.
        """
        named = any(name in self.architectures for name in architectures)
        return EVERY_ARCHITECTURE in self.architectures or named or (dense and self.dense)


class BalancerRules(Struct, frozen=True):
    """How a release of vLLM chooses among its data-parallel engines (`VLLM_DP`); the defaults are
    those of 0.33.
    """

    by_requests_in_flight: bool = True
    """An engine scores by requests in flight and KV; else by 4 * waiting + running."""
    rotates: bool = True
    """Each scan for the least score begins one engine further."""
    hears_dense_engines: bool = True
    """Engines of a dense model tell the coordinator their loads; else it reports zeros."""
    quiet_ns: int = 0
    """What the coordinator waits at least behind a message about engines of a dense model; for
    ranks in lock-step it is 50 ms in every release.
    """
    hears_of_first_requests: bool = False
    """An API server tells the coordinator of its first request behind each report, or, for ranks in
    lock-step, of the one with which a wave begins.
    """
    hears_of_first_iterations: bool = True
    """The first rank in lock-step tells the coordinator of its first iteration of a wave."""


class FrontendCosts(Struct, frozen=True):
    """What one process of an API server works, ns, and what passes beside its work."""

    request_ns: int
    prompt_token_ns: int
    chunk_ns: int
    latency_ns: int
    """Between a client and its engine, beyond the process's work and `api_latency_ns`."""


class SharedWithExperts(Struct, frozen=True):
    """Where an engine runs a family's shared expert in the kernel of the experts that tokens
    choose.
    """

    experts: int = 0
    """Experts that a model of the family must have beside it; 0: any number."""
    apart_on_blackwell: tuple[str, ...] = ()
    """Types of weights whose kernel on compute capability 10 cannot have it."""


class StateRules(Struct, frozen=True):
    """What SGLang does with models that keep states, by the starts of their types."""

    spare: tuple[str, ...] = ()
    """Beside the prefix cache, kernels write the states to keep into spare slots."""
    uncached: tuple[str, ...] = ()
    """They have no prefix cache."""
    overlapping: tuple[str, ...] = ()
    """Steps overlap without spare slots; those of other models wait for the one before."""

    def has_spare(self, model_type: str) -> bool:
        """Whether a model's states have spare slots."""
        return model_type.startswith(self.spare)

    def is_cached(self, model_type: str) -> bool:
        """Whether a model with states has a prefix cache."""
        return not model_type.startswith(self.uncached)

    def overlaps(self, model_type: str) -> bool:
        """Whether a model's steps overlap even without spare slots."""
        return model_type.startswith(self.overlapping)


class EngineProfile(Struct, frozen=True):
    """One engine version; immutable."""

    name: str
    source: str
    defaults: Mapping[str, Any]
    device_classes: tuple[DeviceClass, ...]
    cuda_graphs: GraphRule
    memory: MemoryRules
    static_memory: StaticMemory | None = None
    """None: the share of the memory is a constant."""
    prefill_graphs: PrefillGraphs | None = None
    """None: the sizes of decodes' graphs are also those of any batch."""
    max_num_seqs_with_drafts: int = 0
    """The default where drafts are verified, of all ranks together; 0: as without drafts."""
    vllm_release: str = ""
    """The release of vLLM whose measured kernels are wanted, and the NCCL that it pins; empty: any.
    """
    nccl_release: str = ""
    sglang_release: str = ""
    """The same of an engine whose own kernels come before vLLM's."""
    states: StateRules = StateRules()
    marlin_below: float = 0.0
    """Compute capability of the cards below which experts in MXFP4 run on Marlin."""
    second_stream_tokens: int = 0
    """Up to so many tokens, shared experts run on a stream of their own; 0: never."""
    float32_as: str = ""
    """The type in which checkpoints in float32 run unless one is asked for; empty: as they are."""
    latent_prompts: tuple[LatentPromptRule, ...] = ()
    """On which cards prompts of multi-head latent attention run on the cached latents, and when."""
    shared_with_experts: Mapping[str, "SharedWithExperts"] = field(default_factory=dict)
    """Families of models whose shared expert the engine runs in the kernel of the others."""
    compiles_scaling: bool = False
    """Inductor converts a matrix's input to fp8 inside of the norm or activation before it."""
    options: tuple[str, ...] = ()
    """Of `scheduler_rules.VERSIONED`, those that this version has."""
    second_token_budget: bool = False
    """Slots of drafts come off a budget of their own, step by step, instead of the scheduled tokens
    of every step.
    """
    cudagraph_mode: str = "NONE"
    abort_latency_ns: int = 0
    """What the API server waits until it tells the engine that the client of a stream has gone."""
    launch_ns: int = 0
    """Host time of one launch of compiled code, and (`eager_launch_ns`) of one operator in Python.
    """
    eager_launch_ns: int = 0
    fused_moe_ns: int = 0
    """What each layer of experts takes the host beside its launches in a step without graphs of a
    compiled model; without compilation `eager_launch_ns` has it.
    """
    prepare_ns: int = 0
    """Host time of an asynchronous engine's step before its first launch, and
    (`prepare_sequence_ns`) for each sequence of the step.
    """
    prepare_sequence_ns: int = 0
    launches_measured: str = ""
    """The engine and the machine that the times but `eager_launch_ns` are from; empty: they are
    assumptions, as that one is.
    """
    frees_chunks: bool = False
    """Layers that attend in chunks have tables of blocks of their own, which hold the last chunk
    (VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE).
    """
    async_stages: bool = False
    """Pipeline stages schedule asynchronously, too."""
    v2_runner: V2RunnerRules = V2RunnerRules()
    host_gap_ns: int = 0
    """Host time between two steps of a synchronous engine, and (`host_sequence_ns`) for each
    sequence of the step.
    """
    host_sequence_ns: int = 0
    kv_read_ns: int = 0
    """Host time before a step for each rank that a worker begins to read a prompt's KV from, and
    (`kv_descriptor_ns`) for each piece of it.
    """
    kv_descriptor_ns: int = 0
    host_ranks_ns: int = 0
    """What a synchronous engine adds between two steps of a group of several devices."""
    pads_new_decodes: bool = False
    """With drafts, a request that starts with one token takes as many as a verification, or waits
    for room for them.
    """
    lone_prompt_uncapped: bool = False
    """The long-prefill threshold does not hold for a request that is alone."""
    rules: tuple[str, ...] = ()
    """Of `VERSION_RULES`, those that hold; none does in vLLM 0.24."""
    balancer: BalancerRules = BalancerRules()

    frontend: Mapping[str, FrontendCosts] = field(default_factory=dict)
    """By endpoint; "chat_harmony" is the chat endpoint of models that it renders without a
    template.
    """

    def launch_origin(self, *, eager: bool = False) -> str:
        """Where the host's times of launches are from."""
        measured = "" if eager else self.launches_measured
        how = f"measured with {measured}" if measured else "an assumption"
        return f"engine profile {self.name}, {how}"

    def schedules_by(self, rule: str) -> bool:
        """Whether the rule holds in this version."""
        assert rule in VERSION_RULES, rule
        return rule in self.rules

    def whole_graphs(self, sizes: tuple[int, ...], query: int, method: str) -> tuple[int, ...]:
        """The sizes as the engine captures them where decodes have graphs of their own; `method`
        drafts, and empty says that nothing does.
        """
        drafts_by_v1 = bool(method) and not self.v2_runner.drafts_by(method)
        rounds = self.cuda_graphs.rounds_to_decodes or drafts_by_v1
        return multiples(sizes, query) if rounds else sizes

    def device_class(self, hardware: str, memory_bytes: int) -> DeviceClass:
        """The batch defaults of a device.

        vLLM compares the memory that the driver reports, in GiB: an "80 GB" H100 reports 79.1 to
        79.6. The cluster file's `mem_size` is in GiB too, so "mem_size": 80 and 79.1 fall into the
        same class.
        """
        return next(entry for entry in self.device_classes if entry.fits(hardware, memory_bytes))


def profile_names() -> tuple[str, ...]:
    """The profiles that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


_VERSIONED_NAME = re.compile(r"([a-z-]+)-v?(\d+(?:\.\d+)*)")


def nearest_profile(name: str, known: Sequence[str]) -> str | None:
    """The profile that stands in for a version that has none: the newest one that is not newer, or
    else the oldest.

    None: the name is not an engine with profiles, a hyphen and a version such as 0.11.2.
    """
    wanted = _VERSIONED_NAME.match(name)
    if wanted is None:
        return None
    engine, version = wanted[1], _numbers(wanted[2])
    have: dict[tuple[int, ...], str] = {}
    for one in known:
        found = _VERSIONED_NAME.fullmatch(one)
        if found is not None and found[1] == engine:
            have[_numbers(found[2])] = one
    if not have:
        return None
    older = [one for one in have if one <= version]
    return have[max(older) if older else min(have)]


def profile_of_release(engine: str, version: str) -> str:
    """The name of the profile with the rules of an engine's release, or the nearest to them; parts
    of the version that are no numbers do not count, as in 0.24.0+cu130 or 0.5.23.post1.

    Raises InputError for an engine without profiles.
    """
    return load_profile(f"{engine}-{version}").name


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _merged(stem: str) -> dict[str, Any]:
    """A profile's file over that of the version that it starts from (`base`), by section."""
    data: dict[str, Any] = json.loads(input_files.read_text(_FOLDER / f"{stem}.json"))
    if "base" not in data:
        return data
    base = _merged(data["base"])
    for key, value in data.items():
        keeps = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = {**base[key], **value} if keeps else value
    return base


def _state_rules(states: Mapping[str, Sequence[str]]) -> StateRules:
    return StateRules(**{name: tuple(models) for name, models in states.items()})


def _shared_with_experts(kernels: Mapping[str, Any]) -> Mapping[str, SharedWithExperts]:
    return MappingProxyType(
        {
            family: SharedWithExperts(
                rule.get("experts", 0), tuple(rule.get("apart_on_blackwell", ()))
            )
            for family, rule in kernels.get("shared_with_experts", {}).items()
        }
    )


def _ranges(entries: Sequence[Mapping[str, int]]) -> tuple[range, ...]:
    return tuple(range(entry["first"], entry["below"], entry["step"]) for entry in entries)


@cache
def load_profile(name: str) -> EngineProfile:
    """A profile by name, or the nearest version of that engine (`nearest_profile`); InputError with
    the known ones for any other name.
    """
    known = profile_names()
    stem = name if name in known else nearest_profile(name, known)
    if stem is None:
        raise InputError(
            f'engine profile "{name}" is not known{nearest(name, known)}; known: {", ".join(known)}'
        )
    data = _merged(stem)
    host, schedule = data.get("host", {}), data.get("schedule", {})
    return EngineProfile(
        name=data["name"],
        source=data["source"],
        defaults=MappingProxyType(data["defaults"]),
        device_classes=tuple(_device_class(entry) for entry in data["device_classes"]),
        cuda_graphs=_graph_rule(data["cuda_graphs"]),
        memory=MemoryRules(**data["memory"]),
        static_memory=_static_memory(data.get("static_memory")),
        max_num_seqs_with_drafts=data.get("max_num_seqs_with_drafts", 0),
        prefill_graphs=_prefill_graphs(data.get("prefill_graphs")),
        vllm_release=data.get("kernels", {}).get("vllm", ""),
        nccl_release=data.get("kernels", {}).get("nccl", ""),
        sglang_release=data.get("kernels", {}).get("sglang", ""),
        states=_state_rules(data.get("states", {})),
        marlin_below=data.get("kernels", {}).get("marlin_below", 0.0),
        second_stream_tokens=data.get("kernels", {}).get("second_stream_tokens", 0),
        float32_as=data.get("kernels", {}).get("float32_as", ""),
        latent_prompts=latent_rules(data.get("latent_prompts", ())),
        shared_with_experts=_shared_with_experts(data.get("kernels", {})),
        compiles_scaling=data.get("kernels", {}).get("compiles_scaling", False),
        cudagraph_mode=data["launch"]["cudagraph_mode"],
        launch_ns=data["launch"]["compiled_ns"],
        eager_launch_ns=data["launch"]["eager_ns"],
        fused_moe_ns=data["launch"].get("fused_moe_ns", 0),
        prepare_ns=data["launch"].get("prepare_ns", 0),
        prepare_sequence_ns=data["launch"].get("prepare_sequence_ns", 0),
        launches_measured=data["launch"].get("measured", ""),
        host_gap_ns=host.get("step_ns", 0),
        host_sequence_ns=host.get("sequence_ns", 0),
        host_ranks_ns=host.get("ranks_ns", 0),
        kv_read_ns=data.get("kv_reads", {}).get("rank_ns", 0),
        kv_descriptor_ns=data.get("kv_reads", {}).get("descriptor_ns", 0),
        frontend=MappingProxyType(_frontend(data.get("frontend") or {})),
        options=tuple(schedule.get("options", ())),
        abort_latency_ns=schedule.get("abort_latency_ns", 0),
        second_token_budget=schedule.get("second_token_budget", False),
        frees_chunks=schedule.get("frees_chunks", False),
        async_stages=schedule.get("async_stages", False),
        v2_runner=_v2_runner(schedule.get("v2_runner", {})),
        pads_new_decodes=schedule.get("pads_new_decodes", False),
        lone_prompt_uncapped=schedule.get("lone_prompt_uncapped", False),
        rules=_rules(schedule.get("rules", ())),
        balancer=BalancerRules(**schedule.get("balancer", {})),
    )


def _frontend(endpoints: Mapping[str, Mapping[str, int] | None]) -> dict[str, FrontendCosts]:
    """By endpoint; None stands for one of the earlier profile that nobody measured here."""
    return {name: FrontendCosts(**costs) for name, costs in endpoints.items() if costs is not None}


def _static_memory(entry: Mapping[str, float] | None) -> StaticMemory | None:
    return None if entry is None else StaticMemory(**entry)  # type: ignore[arg-type]


def _prefill_graphs(entry: Mapping[str, Any] | None) -> PrefillGraphs | None:
    if entry is None:
        return None
    return PrefillGraphs(
        _ranges(entry["ranges"]),
        entry["latent_max_tokens"],
        tuple(entry.get("without", ())),
        entry.get("alone", False),
    )


def _graph_rule(entry: Mapping[str, Any]) -> GraphRule:
    special = entry.get("by_architecture", {})
    return GraphRule(
        tokens_per_sequence=entry["tokens_per_sequence"],
        max_tokens=entry["max_tokens"],
        first_sizes=tuple(entry["first_sizes"]),
        ranges=_ranges(entry["ranges"]),
        captures_token_budget=entry["captures_token_budget"],
        by_architecture=MappingProxyType({name: _ranges(special[name]) for name in special}),
        max_tokens_blackwell=entry.get("max_tokens_blackwell", 0),
        captures_sequences=entry.get("captures_sequences", False),
        captures_requests=entry.get("captures_requests", False),
        rounds_to_decodes=entry.get("rounds_to_decodes", True),
        drafting=_ranges(entry.get("drafting", ())),
    )


def _rules(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in VERSION_RULES]
    assert not unknown, f"an engine profile names unknown rules: {unknown}"
    return tuple(names)


def _v2_runner(entry: Mapping[str, Any]) -> V2RunnerRules:
    unknown = [name for name in entry.get("lacks", ()) if name not in V2_FEATURES]
    assert not unknown, f"an engine profile names unknown features: {unknown}"
    return V2RunnerRules(
        architectures=tuple(entry.get("architectures", ())),
        lacks=tuple(entry.get("lacks", ())),
        dense=entry.get("dense", False),
        alone=entry.get("alone", False),
        synchronous_drafts=tuple(entry.get("synchronous_drafts", ())),
    )


def _device_class(entry: Mapping[str, Any]) -> DeviceClass:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return DeviceClass(**fields)
