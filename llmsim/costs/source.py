"""The contract between what knows operator times (bundle, silicon database, data sheet) and what
uses them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct, StructMeta, field
from msgspec.structs import replace

from llmsim.config.engine.latent_prompts import LatentPrompts
from llmsim.core import Int64, Provenance, TableFeature, UInt8
from llmsim.costs.experts.load_sampling import Placement, Price, SampledTable
from llmsim.costs.experts.routing import ExpertRouting
from llmsim.costs.nccl.stated_links import LinksOfFile

if TYPE_CHECKING:
    from llmsim.model import Attention, Dtypes, Hardware, Layout, ModelConfig, Moe, Operator

SourceName = Literal["auto", "bundle", "external", "silicon", "roofline"]
CollectiveSource = Literal["auto", "measured", "links", "nccl"]

SKEW_FRACTION_BITS = 20
"""`skew_ps_per_token_q20` is in units of 2^-20 ps per token, so that the core multiplies integers.
"""


class EngineVersions(Struct, frozen=True):
    """The software whose kernels are wanted; empty: the newest that was measured."""

    vllm: str = ""
    nccl: str = ""
    sglang: str = ""
    framework: str = "vllm"
    """The engine whose own kernels come before those of others."""
    marlin_below: float = 0.0
    """Compute capability of the cards below which its experts in MXFP4 run on Marlin, though they
    could run on another measured kernel.
    """


ANY_VERSION = EngineVersions()
PEER_TO_PEER, THROUGH_HOST = "peer to peer", "through host memory"
"""How devices on PCIe reached each other where a collective was measured, in its source's words."""


class CostRequest(Struct, frozen=True):
    """Everything that a cost table depends on; two equal requests over the same files give the same
    tables.
    """

    model: ModelConfig
    layout: Layout
    dtypes: Dtypes
    hardware_name: str
    """As in the cluster file; also the folder name under a profile directory."""
    hardware: Hardware | None
    """The data sheet, or None for a device without a preset."""
    group_memory_bandwidth_bytes_per_s: int
    """`npu_mem.mem_bw` of the cluster file; used where no data sheet says better, 0 when not given.
    """
    operators: tuple[Operator, ...]
    max_tokens: int
    max_seqs: int
    max_model_len: int
    cuda_graph_sizes: tuple[int, ...] = ()
    profile_dirs: tuple[Path, ...] = ()
    source: SourceName = "auto"
    collectives: CollectiveSource = "auto"
    links: LinksOfFile = LinksOfFile()
    """What measured times of collectives heed of the cluster file's links."""
    unmeasured_ranks: tuple[str, ...] = ()
    """Among whom "auto" takes no measured times, since the topology's links between them are not
    those of the measured machine.
    """
    expert_routing: ExpertRouting = field(default_factory=ExpertRouting)
    expert_placement: Placement = field(default_factory=Placement)
    cost_tables: tuple[Path, ...] = ()
    """Tables of external simulators, and of users; see docs/how-to/external_simulators.md."""
    plugin: str = ""
    """A cost source in Python: `module:Class`, or a name of the entry points "llmsim.cost_sources".
    """
    predict_attention: bool = False
    """A bundle's attention comes from a regressor fitted on its rows, not from its grid."""
    peer_to_peer: bool | None = None
    """Whether the devices of a server reach each other's memory: collectives take tables of such a
    machine. None: of any.
    """
    spans_nodes: bool = False
    """Whether the data-parallel ranks that share experts are on several nodes, so that no node's
    table fits them.
    """
    engine: EngineVersions = ANY_VERSION
    """The engine profile's versions: of several measured tables of a card those of the engine come
    first.
    """

    prompts_together: bool = True
    """Prompts of a step share what one alone leaves idle; False: their times add up
    (`prompts_together` off).
    """
    latent_prompts: LatentPrompts = LatentPrompts()
    """Which prompts of latent attention the engine runs on the cached latents as they are
    (`latent_prompts` off: none).
    """
    context_expansion: bool = True
    """The other prompts of latent attention make keys and values of what is cached; False: they
    find them (`context_expansion` off).
    """
    cold_kv: bool = True
    """Measured decodes are raised to what cold KV takes; False: as the silicon database has them
    (`cold_kv` off).
    """
    sink_attention: bool = True
    """Prompts of models with attention sinks run on Triton's kernel where FlashAttention has no
    sinks; False: on FlashAttention, as the silicon database has them (`sink_attention` off).
    """
    sustained_clock: bool = True
    """Measured matrices take as long as at the clock that the power limit allows; False: as the
    silicon database has them (`sustained_clock` off).
    """
    card_streaming: bool = True
    """Streaming kernels of every engine are vLLM's on the card; False: each engine's own table
    comes first (`card_streaming` off).
    """
    compiles_scaling: bool = False
    """A compiler moves the scaling of a matrix's input into the norm or activation before it."""
    fused_scaling: bool = True
    """Measured rows lose the scaling of inputs that the server does not run; False: as the silicon
    database has them (`fused_scaling` off).
    """
    touched_experts: bool = True
    """Measured experts read the weights that random choices touch; False: those of choices in turn,
    as the silicon database has them (`touched_experts` off).
    """
    default_tiles: bool = True
    """Experts without a tuned file run with the tiles of the engine's release; False: with those of
    the release that was measured (`default_tiles` off).
    """
    padded_experts: bool = True
    """Measured experts multiply the tiles that random choices fill; False: rows of tokens alone
    (`padded_experts` off).
    """
    weight_only_experts: bool = True
    """Experts with weights of 4 bits may take a weight-only kernel's measured times; False: those
    of their own type alone (`weight_only_experts` off).
    """

    second_stream_tokens: int = 0
    """Up to so many tokens of a rank, shared experts run beside the others on a stream of their
    own; 0: never.
    """
    adapters: int = 0
    """LoRA adapters of a step at most."""
    adapter_experts: int = 0
    """Pairs of adapter and expert that a step needs at most."""
    encoder_tokens: int = 0
    """Tokens of an encoder's inputs in a step at most; 0: no encoder is timed."""

    @property
    def table_tokens(self) -> int:
        """Largest token count that a step can have, padding included."""
        most = max(self.max_tokens, *self.cuda_graph_sizes, 1)
        return -(-most // self.token_multiple) * self.token_multiple

    @property
    def token_multiple(self) -> int:
        """Steps are padded to a multiple of this: sequence parallelism gives every rank as many
        tokens (vLLM).
        """
        return self.layout.tp if self.layout.sequence_parallel else 1

    @property
    def table_sequences(self) -> int:
        """Largest number of sequences that a step can have (never more than its tokens, padding
        included).
        """
        return max(self.max_seqs, 1)

    def counts(self, feature: str) -> int:
        """Last index of a table over a feature of `llmsim.model.Operator`."""
        match feature:
            case "gathered":
                return self.table_tokens * self.layout.dp
            case "sequences" | "adapter_rows":
                return self.table_sequences
            case "adapters" | "adapter_loads" | "adapter_reads":
                return self.adapters
            case "adapter_experts":
                return self.adapter_experts
            case "encoder_tokens" | "encoder_pairs":
                return self.encoder_tokens
            case _:
                return self.table_tokens


class OpCost(Struct, frozen=True, eq=False):
    """Time of ONE execution of an operator over its feature; immutable.

    `ps[i]` is the time with `i` tokens or sequences (ps[0] == 0); `repeat` is how often a step
    executes it.
    """

    name: str
    part: str
    repeat: int
    feature: TableFeature
    ps: Int64
    provenance: UInt8
    source: str
    power_uw: Int64 | None = None
    """What one device draws while it runs, by the same index; None: nobody says, as its power in
    the cluster file.
    """
    in_bursts: bool = False
    """Times of bursts, at the full clock, which a power limit lowers in longer runs."""
    collective: bool = False
    """Ranks exchange a tensor; what a pipeline stage sends does not count."""
    sampled: SampledTable | None = None
    """Where tokens load experts unevenly: the slowest rank's times, drawn for every layer; `ps` is
    of even loads.
    """


class MixedGrid(Struct, frozen=True, eq=False):
    """Attention of one layer over (prefill chunk, its cached tokens, decodes, their mean cached
    tokens), complete.

    Shapes: axes int64 ascending, ps and provenance [chunk, kv_prefill, n, kv]. The plane chunk == 0
    is pure decode, n == 0 pure prefill. A step with a prefill has chunk >= 1, so no integer chunk
    blends the planes 0 and 1.
    """

    chunk_axis: Int64
    kv_prefill_axis: Int64
    n_axis: Int64
    kv_axis: Int64
    ps: Int64
    provenance: UInt8


PPM = 1_000_000
"""Parts of a whole in which `SplitGrid.shared_ppm` counts."""


def _shared_ps(ps: Int64, shared_ppm: Int64 | None) -> Int64 | None:
    """So many parts per million of the times, rounded down."""
    if shared_ppm is None:
        return None
    whole, rest = np.divmod(ps, PPM)
    return np.asarray(whole * shared_ppm + rest * shared_ppm // PPM)


class LatentGrid(Struct, frozen=True, eq=False):
    """Prompts that attend to the cached latents, over the axes of a SplitGrid's other prompts."""

    rule: LatentPrompts
    """Which prompts they are."""
    ps: Int64
    provenance: UInt8
    shared_ppm: Int64 | None = None
    """As `SplitGrid.shared_ppm`."""

    @property
    def shared_ps(self) -> Int64 | None:
        """`shared_ppm` of `ps`, rounded down."""
        return _shared_ps(self.ps, self.shared_ppm)


class SplitGrid(Struct, frozen=True, eq=False):
    """Attention of one layer as a sum of prefills (q new tokens on k cached), which may share a
    part, and one decode batch (n, mean kv).

    Shapes: prefill_ps [q, k], decode_ps [n, kv]. In a step with a prefill the decode time is at
    least n * kv * mixed_decode_ps_per_kv_token_q20 / 2^20 (loss of packing; 0 where the kernel does
    not lose it).
    """

    q_axis: Int64
    k_axis: Int64
    prefill_ps: Int64
    prefill_provenance: UInt8
    n_axis: Int64
    kv_axis: Int64
    decode_ps: Int64
    decode_provenance: UInt8
    mixed_decode_ps_per_kv_token_q20: int
    shared_ppm: Int64 | None = None
    """[q, k], parts per million of `prefill_ps`: what a prompt takes alone and several of a step
    share, such as the launch and idle multiprocessors. A step takes the largest such part once.
    None: prompts share nothing, and their times add up.
    """
    on_latents: LatentGrid | None = None
    """Prompts with times of their own; None: `prefill_ps` has those of all."""

    @property
    def shared_ps(self) -> Int64 | None:
        """`shared_ppm` of `prefill_ps`, rounded down."""
        return _shared_ps(self.prefill_ps, self.shared_ppm)

    def with_prompts(self, times: Callable[[Int64], Int64]) -> SplitGrid:
        """The same with other times of prompts, [q, k] each."""
        latents = self.on_latents
        if latents is not None:
            latents = replace(latents, ps=times(latents.ps))
        return replace(self, prefill_ps=times(self.prefill_ps), on_latents=latents)

    def with_longer_prompts(self, more_ps: Int64, more_shared_ps: Int64 | int = 0) -> SplitGrid:
        """The same with so much more of each prompt, [q, k]; `more_shared_ps` of it is shared."""
        prefill_ps, shared_ps = self.prefill_ps + more_ps, self.shared_ps
        if shared_ps is None:
            return replace(self, prefill_ps=prefill_ps)
        share = (shared_ps + more_shared_ps) / np.maximum(prefill_ps, 1)
        shared_ppm = np.floor(share * PPM).astype(np.int64)
        return replace(self, prefill_ps=prefill_ps, shared_ppm=shared_ppm)


class _EitherShape(StructMeta):
    """Makes `AttentionCost(repeat, mixed, split, ...)`, as plug-ins may still write, one of its two
    kinds.
    """

    def __call__(cls, *values: Any, **named: Any) -> Any:
        if cls is AttentionCost:
            return _of_either_shape(*values, **named)
        return super().__call__(*values, **named)


class AttentionCost(Struct, frozen=True, eq=False, kw_only=True, metaclass=_EitherShape):
    """Attention of ONE layer; `repeat` layers per step. Either a MixedAttention or a
    SplitAttention.

    Unequal decode lengths add skew_ps_per_token_q20 * (max - mean) / 2^20 per layer (0: unknown or
    absent).
    """

    repeat: int
    skew_ps_per_token_q20: int
    source: str
    skew_source: str
    name: str = "attention"
    window: int = 0
    """Tokens that these layers see, of the last ones or (`chunked`) of their own chunk; 0: all. The
    grids are those of layers that see everything: what a batch sees through the window is looked up
    in them.
    """
    chunked: bool = False
    from_bundle: bool = False
    """Whether a user's profile says it."""
    power_uw: int = 0
    """What one device draws meanwhile, on average over a table's rows; 0: nobody says."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Answers for the two earlier fields, of which one was None, and warns."""
            kind = {"mixed": MixedAttention, "split": SplitAttention}.get(name)
            if kind is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            sentence = (
                f"AttentionCost.{name} is now the grid of {kind.__name__}; match on the class"
            )
            warnings.warn(sentence, FutureWarning, stacklevel=2)
            return self.grid if isinstance(self, kind) else None


class MixedAttention(AttentionCost, frozen=True, eq=False, kw_only=True):
    """Prefills and decodes of a step are one call."""

    grid: MixedGrid
    prompts_apart: bool = False
    """Several prompts of a step are looked up one by one, and share the time of the shortest call;
    else as one that sees as many pairs.
    """


class SplitAttention(AttentionCost, frozen=True, eq=False, kw_only=True):
    """Prefills and the decodes of a step are calls of their own."""

    grid: SplitGrid


def _of_either_shape(
    repeat: int,
    mixed: MixedGrid | None,
    split: SplitGrid | None,
    skew_ps_per_token_q20: int,
    source: str,
    skew_source: str,
    *,
    prompts_apart: bool = False,
    **others: Any,
) -> AttentionCost:
    sentence = "AttentionCost is made as MixedAttention(grid=...) or SplitAttention(grid=...)"
    warnings.warn(sentence, FutureWarning, stacklevel=3)
    shared: dict[str, Any] = {
        "repeat": repeat,
        "skew_ps_per_token_q20": skew_ps_per_token_q20,
        "source": source,
        "skew_source": skew_source,
        **others,
    }
    if mixed is not None:
        return MixedAttention(grid=mixed, prompts_apart=prompts_apart, **shared)
    if split is None:
        raise TypeError("attention has one of two grids: give mixed or split")
    return SplitAttention(grid=split, **shared)


class Floor(Struct, frozen=True):
    """What a step reads at least, to check it against the data sheet; all per rank.

    A step takes at least (weight_bytes_read + kv_bytes_per_token * cached tokens of its decodes) /
    bandwidth; KV counts for a step only where one layer's KV exceeds `last_level_cache_bytes`.
    `weight_bytes_read` covers the layers and the head; embedding rows are looked up, not streamed,
    and experts count only as far as every step must touch them (top-k of them when all are local,
    none otherwise).
    """

    weight_bytes_read: int
    kv_bytes_per_token: int
    memory_bandwidth_bytes_per_s: int
    flops_per_token: int
    peak_flops_per_s: int
    last_level_cache_bytes: int
    enforce: bool
    """True: our own costs, a step below is an invariant violation. False: the user's bundle,
    already warned about.
    """


class CompiledCosts(Struct, frozen=True, eq=False):
    """Integer cost tables of one deployment, ready for the native core; immutable."""

    ops: tuple[OpCost, ...]
    attention: AttentionCost
    floor: Floor
    link_collectives: tuple[str, ...]
    """Names of the collectives that are not in `ops`: the engine prices them on the cluster's
    links.
    """
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    """Each distinct place that a number came from, in order of first use."""
    table_hash: str
    more_attention: tuple[AttentionCost, ...] = ()
    """Of the layers of other kinds, in a model that has them."""

    @property
    def attentions(self) -> tuple[AttentionCost, ...]:
        """Every kind of attention, in the order of the model's operators."""
        return (self.attention, *self.more_attention)

    @property
    def from_bundle(self) -> bool:
        """Whether a user's profile prices the operators."""
        return self.attention.from_bundle


class Curve(Struct, frozen=True, eq=False):
    """Times over 0..max of one operator; the form in which a source answers."""

    ps: Int64
    provenance: UInt8
    source: str
    power_uw: Int64 | None = None
    feature: TableFeature | None = None
    """What the times are over, where that is not the operator's feature: tokens of prompts alone,
    for one.
    """


SourceKind = Literal["bundle", "plug-in", "external", "silicon", "similar", "roofline"]


class CostSource(ABC):
    """Something that knows operator times; queried once per operator while tables are compiled.

    A source overrides what it offers; each default says that it offers nothing.
    """

    name: str
    kind: SourceKind
    enforce_floor: bool = False
    """Whether a step faster than the data sheet allows is a defect of ours."""
    prices_collectives: bool = False
    """Whether the source's answers for collectives come before measured tables and links."""
    in_bursts: bool = False
    """Whether its times are of bursts, at the full clock."""
    measured_routing: str = ""
    """Expert routing whose uneven loads are part of the times of whole experts; "": none."""

    @abstractmethod
    def operator(self, op: Operator, last: int) -> Curve | None:
        """Times for 1..last tokens or sequences of one execution (index 0 is 0); None when this
        source has none.
        """

    @abstractmethod
    def attention(self, op: Attention) -> AttentionCost | None:
        """Attention of one layer as if it saw everything; None when this source has none."""

    def experts_us(self, op: Moe) -> Price | None:
        """Microseconds of a rank by its (token, expert) pairs and touched experts; None: only the
        even loads of `operator` are known.
        """
        del op
        return None

    def extra_ops(self) -> list[OpCost]:
        """Costs of the source as a whole, such as gaps between kernels."""
        return []

    def notes(self) -> list[str]:
        """What the user should know, one sentence each; complete after the last query."""
        return []


def to_ps(microseconds: np.ndarray) -> Int64:
    """Integer picoseconds, round half up (docs/explanation/execution.md, A7)."""
    return np.floor(np.asarray(microseconds, dtype=np.float64) * 1e6 + 0.5).astype(np.int64)


def curve_from_points(points: np.ndarray, times_us: np.ndarray, last: int, source: str) -> Curve:
    """Dense table 0..last from measured points (ascending): linear between, clamped below, linear
    above.

    Above the last point the slope over the last octave is kept, but never a negative one: where
    neighbouring points are one token apart, the slope of the last two is noise.
    """
    counts = np.arange(last + 1, dtype=np.float64)
    times = np.interp(counts, points, times_us)
    if last > points[-1]:
        slope = last_slope(points, times_us)
        above = counts > points[-1]
        times[above] = times_us[-1] + slope * (counts[above] - points[-1])
    ps = to_ps(times)
    ps[0] = 0
    provenance = np.full(last + 1, Provenance.INTERPOLATED, dtype=np.uint8)
    inside = points[(points <= last) & (points == np.floor(points))].astype(np.int64)
    provenance[inside] = Provenance.MEASURED
    provenance[counts > points[-1]] = Provenance.EXTRAPOLATED
    provenance[counts < points[0]] = Provenance.EXTRAPOLATED
    return Curve(ps, provenance, source)


def last_slope(points: np.ndarray, times_us: np.ndarray) -> float:
    """Microseconds per point over the last octave of the axis, at least over the last two points;
    not negative.
    """
    if len(points) < 2:
        return 0.0
    start = min(int(np.searchsorted(points, points[-1] / 2)), len(points) - 2)
    return max(0.0, float((times_us[-1] - times_us[start]) / (points[-1] - points[start])))
