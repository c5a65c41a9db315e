"""The nouns that every part shares; imports nothing from the package but the columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.columns import Int16 as Int16
from llmsim.columns import Int32 as Int32
from llmsim.columns import Int64 as Int64
from llmsim.columns import KvTransferColumns as KvTransferColumns
from llmsim.columns import PowerColumns
from llmsim.columns import RequestColumns as RequestColumns
from llmsim.columns import RequestDrafts as RequestDrafts
from llmsim.columns import UInt8 as UInt8
from llmsim.columns import UInt64 as UInt64

if TYPE_CHECKING:
    from llmsim import _native


class Severity(IntEnum):
    """What a note of a run asks of its reader."""

    DETAIL = 0
    """Nothing: an assumption or a source, which `-v` shows."""
    DECISION = 1
    """A second look: the figures answer another question than the one that was asked."""


class Note(str):
    """A sentence about a run, with its severity; in JSON it is the sentence alone."""

    severity: Severity

    def __new__(cls, sentence: str, severity: Severity = Severity.DECISION) -> "Note":
        """The sentence; without a severity it changes a decision."""
        note = super().__new__(cls, sentence)
        note.severity = severity
        return note


def severity_of(note: str) -> Severity:
    """The severity of a note; a plain text is a detail."""
    return note.severity if isinstance(note, Note) else Severity.DETAIL


PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000
MAX_HORIZON_PS = 1 << 62
"""Times are int64 picoseconds; a trace that reaches beyond half of their range (53 days) is
refused.
"""


class Status(IntEnum):
    """Where a request stands at the end of a run (column `status`)."""

    PENDING = 0
    """Not yet arrived: a session call whose predecessor has not finished, or an interrupted run."""
    WAITING = 1
    RUNNING = 2
    FINISHED = 3
    REJECTED = 4
    """Can never run in its group (longer than the model or the KV cache)."""
    CANCELLED = 5
    """Its client gave up; or a session's call that never came, because the client gave up before.
    """
    PARKED = 6
    """Disaggregated: its decode group holds blocks for it, and waits for its KV."""
    REFUSED = 7
    """Turned away by the admission policy; or a later call of a session of which one was."""
    FAILED = 8
    """Ended with an error by its engine, as its KV could not be loaded; or a later call of a
    session of which one was.
    """


class Provenance(IntEnum):
    """How a time was obtained, from best to least known."""

    MEASURED = 0
    INTERPOLATED = 1
    EXTRAPOLATED = 2
    SCALED = 3
    ANALYTIC = 4


EncoderInput = tuple[int, int, str]
"""First token, tokens and name of an image or another input of an encoder; equal names are equal
content, and "" is like no other.
"""


class Workload(Struct, frozen=True, eq=False):
    """What clients ask for, as columns of length n in order of arrival; immutable.

    `arrival_ps` is -1 for the second and later calls of a session: such a call arrives
    `tool_delay_ps` of its predecessor after the predecessor's last token. `next_call` is the row of
    a call's successor, or -1. `keys[key_offsets[i]:key_offsets[i+1]]` identify the content of
    request i's first full blocks of `granularity` tokens (prompt and output as one stream); equal
    keys mean equal content *and* equal prefix.
    """

    arrival_ps: Int64
    input_tokens: Int32
    output_tokens: Int32
    model: Int16
    models: tuple[str, ...]
    next_call: Int32
    tool_delay_ps: Int64
    key_offsets: Int64
    keys: UInt64
    granularity: int
    source: str
    session_id: list[str] | None = None
    request_id: list[str] | None = None
    priority: Int32 | None = None
    """Shape (n,), a lower number is more urgent; None: all equal. Read by scheduling_policy
    "priority" only.
    """
    timeout_ps: Int64 | None = None
    """Shape (n,): the client gives up so long after the arrival; -1: never."""
    cancel_after_tokens: Int32 | None = None
    """Shape (n,): the client gives up with so many tokens; 0: never."""
    hidden: NDArray[np.bool_] | None = None
    """Shape (n,): the answer is part of a session's reasoning, which its client does not see.
    None: the trace says nothing of reasoning.
    """
    extends: NDArray[np.bool_] | None = None
    """Shape (n,): the prompt begins with prompt and answer of the row before, by assumption."""
    draft_depth: Int32 | None = None
    """Shape (n,): most drafts of a verification; -1: as many as the group makes."""
    acceptance_rate: list[tuple[float, ...]] | None = None
    """Of each row, the chance that a draft holds by its position, the last one for all further;
    empty: the group's.
    """
    accepted_drafts: list[tuple[int, ...]] | None = None
    """Of each row, the recorded drafts that held in its verifications, one after the other."""
    slo_class: list[str] | None = None
    """Of each row, the class of requests whose latency targets it has; "": none."""
    adapter: list[str] | None = None
    """Of each row, the name of its LoRA adapter; "": the model itself."""
    encoder_inputs: list[tuple[EncoderInput, ...]] | None = None
    """Of each row, the parts of its prompt that an encoder computes, in the order of offsets."""
    notes: tuple[str, ...] = ()

    @property
    def may_give_up(self) -> bool:
        """Whether a client may leave before its answer ends."""
        return self.timeout_ps is not None or self.cancel_after_tokens is not None

    def __len__(self) -> int:
        return len(self.arrival_ps)


class Clients(Struct, frozen=True, eq=False):
    """A closed loop: `count` clients ask in turn, each thinking `think_ps[i]` after its request i
    (empty: no time).
    """

    count: int
    think_ps: Int64


TableFeature = Literal[
    "tokens",
    "sequences",
    "gathered",
    "decodes",
    "prefills",
    "adapter_tokens",
    "adapter_rows",
    "adapters",
    "adapter_experts",
    "adapter_loads",
    "adapter_reads",
    "encoder_tokens",
    "encoder_pairs",
]
"""What cost tables are over, in the core's order: tokens that a rank computes, its sequences, the
tokens of all ranks of its data-parallel domain, those of decodes, those of prompts before
context-parallel ranks share them out. Of requests with a LoRA adapter: their tokens, their rows of
logits, the different adapters, the pairs of adapter and expert that they need, and the adapters
that are loaded before the step, or whose files are read. Of images and other inputs that an encoder
computes in the step: their tokens, and their tokens' pairs within each input, by `ENCODER_TOKENS`.
"""
FEATURES: tuple[str, ...] = get_args(TableFeature)
ENCODER_FEATURES: tuple[str, ...] = ("encoder_tokens", "encoder_pairs")
ENCODER_TOKENS = 16384
"""Tokens of one input that a timed encoder computes, unless the budget of a step is larger."""


class GroupInfo(Struct, frozen=True):
    """What the outputs say about one model serving group."""

    index: int
    model_name: str
    hardware: str
    num_devices: int
    tp: int
    num_blocks: int
    block_size: int
    max_model_len: int
    """Tokens of a request at most: prompt and answer."""
    model_max_len: int
    """How far max_model_len can be raised."""


class BackendUse(Struct, frozen=True):
    """What a program did that timed the steps of a run."""

    name: str
    steps: int
    """Of all groups; members of a lock-step group run one together."""
    new_steps: int
    """Those that the program had not timed before, in this run or an earlier one."""
    failure: str = ""
    """How the program has failed, which has ended the run."""


OFFLOAD = "offload"
"""What `TimeShare.operator` calls copies and memory that computes, where steps waited for them."""


class TimeShare(Struct, frozen=True):
    """Busy time of one operator of one group by where its number came from;
    `ps_by_provenance[Provenance]`.
    """

    group: int
    operator: str
    source: str
    ps_by_provenance: tuple[int, ...]


COMPONENTS = tuple(one.name.removesuffix("_w") for one in PowerColumns.COLUMNS if one.unit == "W")
"""What a node's energy is split into; every joule is in exactly one."""

AJ_PER_J = 10**18


class Traffic(Struct, frozen=True):
    """Bytes that the devices of a group moved, all of them together."""

    memory_bytes: int = 0
    """Their own memory: weights, activations, KV, and what comes from other memories or goes there.
    """
    link_bytes: int = 0
    """Collectives between them, as ring algorithms send them."""
    host_bytes: int = 0
    """Between devices and the node's host memory."""
    pool_bytes: int = 0
    """The cluster's CXL pool."""
    nic_bytes: int = 0
    """KV hand-overs and collectives between nodes, at this end, and KV of the cluster's storage."""
    storage_bytes: int = 0
    """Between devices and the node's storage, which crosses its links too."""
    processor_bytes: int = 0
    """Host memory without a link: what the node's processors read and write, and handed-over KV
    that lands there.
    """

    def plus(self, **more: int) -> "Traffic":
        """With what else moved: fields of this class."""
        return replace(self, **{name: getattr(self, name) + size for name, size in more.items()})


class GroupEnergy(Struct, frozen=True):
    """Energy of one group, attojoules: its devices by state, the bytes it moved, and its share of
    its node's rest.
    """

    group: int
    node: int
    active_aj: int
    standby_aj: int
    idle_aj: int
    traffic_aj: int
    shared_aj: int
    """Of the node's constant powers, in proportion to the devices."""
    active_ps: int
    """Of each device; standby and idle fill the rest of the window."""
    standby_ps: int
    traffic: Traffic
    node_aj: tuple[tuple[int, int], ...] = ()
    """(node, its part of all) for each node that its devices are on."""

    @property
    def total_aj(self) -> int:
        """All of it."""
        return self.active_aj + self.standby_aj + self.idle_aj + self.traffic_aj + self.shared_aj


class Energy(Struct, frozen=True, eq=False):
    """What the cluster drew between the first arrival and the end of the last step.

    A node (and its groups) without a `power` section is None. `components_aj[i]` and `series` cover
    the nodes that have one; `pool_aj` is the CXL pool's, beside the nodes.
    """

    start_ps: int
    end_ps: int
    components_aj: tuple[Mapping[str, int] | None, ...]
    """Per node, by the names of COMPONENTS."""
    groups: tuple[GroupEnergy | None, ...]
    pool_aj: int
    request_j: NDArray[np.float64]
    """Shape (requests,): each request's part of its groups' energy, in proportion to the device
    time it was given.
    """
    unattributed_j: float
    """Of groups that served nobody, of nodes without a group's work, and of the pool."""
    series: Mapping[str, NDArray[np.generic]]
    """Mean power per interval and node: columns of `llmsim.columns.PowerColumns`."""

    @property
    def total_aj(self) -> int:
        """Of all nodes that say what they draw, and of the pool."""
        return self.pool_aj + sum(
            sum(parts.values()) for parts in self.components_aj if parts is not None
        )


class KeptGaps(Struct, frozen=True, eq=False):
    """The inter-token latencies of every request, for results without their simulation."""

    gaps_ps: Int64
    """Those of one request after those of the other."""
    offsets: Int64
    """Shape (requests + 1,): where each request's begin."""

    @classmethod
    def of(cls, itl_of: Callable[[int], Int64], requests: int) -> "KeptGaps":
        """A copy of what `itl_of` gives for so many requests."""
        gaps = [itl_of(row) for row in range(requests)]
        ends = np.cumsum([len(one) for one in gaps], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *gaps]), np.append([0], ends))

    def __call__(self, row: int) -> Int64:
        return self.gaps_ps[self.offsets[row] : self.offsets[row + 1]]


@dataclass(eq=False)
class Results:
    """Everything a run produced; filled by `simulate`, read by results, report and export.

    `steps` and `series` are columns of equal length (names and units: `llmsim.columns`);
    `itl_values_ps` is sorted and unique and `itl_counts` says how many inter-token latencies had
    each value. `itl_of(i)` rebuilds the inter-token latencies of request i, shape (emitted_tokens -
    1,), ps.
    """

    workload: Workload
    groups: tuple[GroupInfo, ...]
    requests: RequestColumns
    itl_values_ps: Int64
    itl_counts: Int64
    itl_of: Callable[[int], Int64]
    steps: Mapping[str, NDArray[np.generic]]
    series: Mapping[str, NDArray[np.generic]]
    counters: Mapping[str, Int64]
    """Per group, shape (groups,): see `llmsim.columns.GroupCounters`."""
    time_shares: tuple[TimeShare, ...]
    table_rows: tuple[tuple[Int64, ...], ...] = ()
    """Per group and feature of `FEATURES`, how often a step had n of it, padding included; shapes
    (max + 1,), empty for features that no operator depends on.
    """
    blame: Mapping[str, Int64] = field(default_factory=dict)
    """Parts of each request's latency, `llmsim.columns.LatencyCauses`, shape (requests,); zero
    unless it finished.
    """
    first_token_blame: Callable[[], Mapping[str, Int64]] = dict
    """Parts of each request's time to first token, by the names of `blame`; computed when asked."""
    accepted_at: tuple[Int64, ...] = ()
    """Per group, how many drafts of each position held."""
    drafts: RequestDrafts | None = None
    """None: no group speculates."""
    kv_transfers: KvTransferColumns | None = None
    """None: no group has a role of its own."""
    links: Mapping[str, Int64] = field(default_factory=dict)
    """Per link of the network that groups share, `llmsim.columns.LinkColumns`."""
    energy: Energy | None = None
    """None: no node says what it draws."""
    reconfigurations: tuple[Mapping[str, int], ...] = ()
    """Switches of layouts, as the core numbers layouts and triggers; times in ps."""
    layout_visits: tuple[tuple[int, int], ...] = ()
    """(layout, index of its first group) in the order in which they served; empty without
    layouts.
    """
    kv_tiers: tuple[Mapping[str, int | str], ...] = ()
    """What each pool of KV below the devices did (docs/explanation/kv_tiers.md)."""
    attention_reach: tuple[tuple[int, str, float], ...] = ()
    """(group, attention, farthest point over the last one of its tables) where they were continued.
    """
    kv_tier_series: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """The same per interval; `llmsim.columns.KvTierSeriesColumns`."""
    link_series: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """What links that groups share carried per interval; `llmsim.columns.LinkSeriesColumns`."""
    interrupted: bool = False
    circular: tuple[int, ...] = ()
    """Groups whose requests took KV blocks from each other for ever, which ended the run."""
    horizon_ps: int | None = None
    """Where the run was cut, as asked for; None: it was not."""
    backend: BackendUse | None = None
    """Another program that timed the steps; None: none did."""
    invariants: Mapping[str, str] = field(default_factory=dict)
    """Number and name of each invariant checked -> "ok" or what was found."""
    notes: tuple[str, ...] = ()
    simulation: "_native.Simulation | None" = field(default=None, repr=False)
    """The native simulation that has run, for tables that are made when they are asked for."""

    def __getstate__(self) -> dict[str, Any]:
        """All of it but the native simulation, which is asked now for what it is asked for later:
        results cross processes and are kept in files.
        """
        return {
            **vars(self),
            "itl_of": KeptGaps.of(self.itl_of, len(self.workload)),
            "first_token_blame": partial(dict, self.first_token_blame()),
            "simulation": None,
        }

    @property
    def cut_short(self) -> bool:
        """Whether requests may be left that would have gone on."""
        failed = self.backend is not None and bool(self.backend.failure)
        return self.interrupted or failed or bool(self.circular) or self.horizon_ps is not None
