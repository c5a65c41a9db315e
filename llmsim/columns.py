"""Every column of a run's tables, declared once: its name, numpy type, unit and meaning.

A table is a class, and a column is one of its fields. The core declares the tables that it fills
as structs of vectors; `check_agreement` compares the two declarations when a run is prepared. The
files of a run folder and docs/reference/columns.md are made of these classes.
"""

# ruff: noqa: RUF009  (column() is dataclasses.field() with a unit and a meaning)

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int16 = NDArray[np.int16]
UInt64 = NDArray[np.uint64]
UInt8 = NDArray[np.uint8]
Text = list[str]
Lists = list[Int64]


@dataclass(frozen=True)
class Column:
    """One column of a table; `dtype` is a numpy type, "string" or "list<int64>"."""

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False
    """Whether a file may hold null: for a time that never came, or a name that nobody gave."""
    in_files: bool = True
    """Whether files show the column: not where it serves checks alone, or has another form there.
    """


def column(unit: str, meaning: str, *, nullable: bool = False, in_files: bool = True) -> Any:
    """Declares a field of a table as a column, whose type is the field's annotation."""
    stated = {"unit": unit, "meaning": meaning, "nullable": nullable, "in_files": in_files}
    return field(metadata=stated)


def optional_ps(meaning: str) -> Any:
    """Declares a column of picoseconds that a file shows as null where the time never came."""
    return column("ps", meaning, nullable=True)


class Table:
    """Columns of equal length, one for each field of the subclass.

    Defining a subclass raises TypeError for a field that lacks its type, or its unit and meaning.
    """

    COLUMNS: ClassVar[tuple[Column, ...]]

    def __init_subclass__(cls) -> None:
        types = get_annotations(cls)
        declared = {name: one for name, one in vars(cls).items() if isinstance(one, Field)}
        for name in declared.keys() - types.keys():
            raise _half_declared(cls.__name__, name, "has no type; annotate it, as with Int64")
        for name in types.keys() - declared.keys():
            raise _half_declared(cls.__name__, name, "has no meaning; assign column(unit, meaning)")
        cls.COLUMNS = tuple(
            Column(name, _dtype(types[name]), **one.metadata) for name, one in declared.items()
        )


def _half_declared(table: str, name: str, what: str) -> TypeError:
    return TypeError(f"the column {name} of {table} is half declared: it {what}")


@cache
def _dtype(annotation: Any) -> str:
    """The type of a column, from an annotation such as Int64."""
    if annotation is Text:
        return "string"
    if annotation is Lists:
        return "list<int64>"
    return str(element_type(annotation))


def element_type(annotation: Any) -> np.dtype[Any]:
    """The type of the elements of an annotation such as Int64.

    Its last argument is np.dtype[scalar]; from numpy 2.5 on it is the scalar itself.
    """
    inner = get_args(annotation)[-1]
    (scalar,) = get_args(inner) or (inner,)
    found: np.dtype[Any] = np.dtype(scalar)
    return found


def check_agreement(core: Mapping[str, Mapping[str, str]]) -> None:
    """Raises TypeError, with the column's name, unless the core's tables are those of CORE_TABLES.

    `core` holds the type of each column by the names of table and column.
    """
    for name, table in CORE_TABLES.items():
        here = {one.name: one.dtype for one in table.COLUMNS}
        there = core[name]
        for missing in here.keys() - there.keys():
            raise _half_declared(table.__name__, missing, f"is not in the core's table {name}")
        for missing in there.keys() - here.keys():
            raise _half_declared(table.__name__, missing, "is in the core and not here")
        for one, dtype in here.items():
            if dtype != there[one]:
                what = f"is {dtype} in llmsim/columns.py and {there[one]} in the core"
                raise _half_declared(table.__name__, one, what)


class RequestNames(Table):
    """Who asked, and what answered."""

    request_id: Text = column("", "Name of the request in the trace, else its row.")
    session_id: Text = column("", "Name of the session; null outside of sessions.", nullable=True)
    group: Int16 = column("", "Index of the group that served the request.", nullable=True)
    model: Text = column("", "Model that served the request, else the one it named.", nullable=True)
    status: Text = column("", "Where the request stood when the run ended.")


@dataclass(eq=False)
class RequestColumns(Table):
    """Progress of every request, in the order of the workload.

    Times count from the trace's zero; -1 (null in the file) stands for one that never came.
    """

    group: Int16 = column("", "Index of the group that served it; -1 if none.", in_files=False)
    status: UInt8 = column("", "A number of llmsim.core.Status.", in_files=False)
    arrival_ps: Int64 = optional_ps("When the client sent the request.")
    queued_ps: Int64 = optional_ps("When the engine saw the request: arrival plus API latency.")
    scheduled_ps: Int64 = optional_ps("When the request first ran.")
    first_token_ps: Int64 = optional_ps("End of the step that gave the first token.")
    finish_ps: Int64 = optional_ps("End of the step that gave the last token.")
    cancelled_ps: Int64 = optional_ps(
        "When the engine dropped the request: its client had left, or it ended with an error."
    )
    emitted_tokens: Int32 = column("tokens", "Tokens that the client received.")
    cached_tokens: Int32 = column(
        "tokens", "Prompt tokens that the prefix cache held when the request first ran."
    )
    preemptions: Int32 = column("", "How often the request was sent back to the queue.")


class RequestSizes(Table):
    """What the workload says of every request."""

    input_tokens: Int32 = column("tokens", "Length of the prompt.")
    output_tokens: Int32 = column("tokens", "Tokens that the request would emit if nothing cut it.")


class RequestDurations(Table):
    """Differences of a request's times; null unless both came."""

    ttft_ps: Int64 = optional_ps("First token - arrival.")
    e2el_ps: Int64 = optional_ps("Last token - arrival.")
    queueing_ps: Int64 = optional_ps("First scheduled - arrival.")


class LatencyCauses(Table):
    """Parts of a finished request's latency, or of a dropped one's time in the system.

    They add up to it exactly.
    """

    api_ps: Int64 = optional_ps("From arrival until the engine saw the request.")
    queue_ps: Int64 = optional_ps("Waiting in the engine until first scheduled.")
    wait_ps: Int64 = optional_ps(
        "Scheduled or running while the device ran steps without the request, or waited for the "
        "host to prepare one with it."
    )
    prefill_ps: Int64 = optional_ps("Computing up to the first token.")
    decode_ps: Int64 = optional_ps("Computing the later tokens.")
    communication_ps: Int64 = optional_ps("Collectives of the steps that the request took part in.")
    encoder_ps: Int64 = optional_ps(
        "Images and other inputs that an encoder computed in those steps (encoder_inputs)."
    )
    m2n_ps: Int64 = optional_ps(
        "Transfers between attention and FFN that those steps waited for (with afd_group)."
    )
    offload_ps: Int64 = optional_ps(
        "Copies of weights, and memory or processors that compute, which those steps waited for."
    )
    host_ps: Int64 = optional_ps(
        "Device idle before and between those steps: the host prepares them."
    )
    kv_transfer_ps: Int64 = optional_ps("KV on its way from the prefill group to the decode group.")
    preemption_ps: Int64 = optional_ps(
        "Between the last token before a preemption and the first after it."
    )
    reconfigure_ps: Int64 = optional_ps(
        "Between groups while layouts were switched; with its last token before, its first after."
    )
    abandoned_ps: Int64 = optional_ps(
        "Of a dropped request: from its last token, or its start, until the engine dropped it."
    )


class FrontendCause(Table):
    """One more part where an API server takes time."""

    frontend_ps: Int64 = optional_ps(
        "Waiting for the API server's process, and its work, before the engine and after its steps."
    )


@dataclass(eq=False)
class KvTransferColumns(Table):
    """How KV went from group to group, in the order of the workload; null where one group did all.

    `prefill_group` is -1 where one group did everything, and a time is -1 where it never came.
    """

    prefill_group: Int16 = column(
        "", "Group that computed the prompt where another one decoded.", nullable=True
    )
    prefill_end_ps: Int64 = optional_ps("When the prompt was computed.")
    kv_reserved_ps: Int64 = optional_ps("When the decode group held blocks for all of the prompt.")
    kv_landed_ps: Int64 = optional_ps("When the last byte of KV reached the decode group.")
    decode_scheduled_ps: Int64 = optional_ps("When the request first ran in the decode group.")
    decode_cached_tokens: Int32 = column(
        "tokens", "Prompt tokens that the decode group had cached.", nullable=True
    )
    kv_transfer_bytes: Int64 = column("B", "KV that was moved.", nullable=True)
    kv_due_bytes: Int64 = column("B", "KV that both layouts ask for.", in_files=False)


class RequestEnergy(Table):
    """What a request drew; null unless every node has a power section."""

    energy_j: Float64 = column(
        "J",
        "The request's part of what its groups drew (docs/explanation/power.md).",
        nullable=True,
    )


@dataclass(eq=False)
class RequestDrafts(Table):
    """What became of a request's drafts; only in runs with speculation."""

    drafted_tokens: Int32 = column("tokens", "Drafts that were proposed for the request.")
    verified_tokens: Int32 = column("tokens", "Drafts that steps verified.")
    accepted_tokens: Int32 = column("tokens", "Drafts that held.")
    committed_tokens: Int32 = column(
        "tokens", "Tokens that verifications gave, the one behind the drafts included."
    )


class RequestClass(Table):
    """The class of a request; only where the trace has classes."""

    slo_class: Text = column(
        "", "Class of requests whose latency targets the request has.", nullable=True
    )


class RequestTokens(Table):
    """Times between the tokens of a request."""

    itl_ps: Lists = optional_ps("Inter-token latencies, one less than tokens.")


@dataclass(eq=False)
class SessionColumns(Table):
    """One row per session, in the order of their first calls; a request alone is a session.

    The answer round is the last call that is not hidden. Times are null unless every call finished.
    """

    session_id: Text = column("", "Name of the session; null where it has none.", nullable=True)
    rounds: Int32 = column("", "Calls of the session.")
    hidden_rounds: Int32 = column("", "Calls whose answers the client does not see.")
    finished_rounds: Int32 = column("", "Calls that finished.")
    arrival_ps: Int64 = optional_ps("When the client sent the first call.")
    finish_ps: Int64 = optional_ps("Last token of the last call.")
    attft_ps: Int64 = optional_ps("First token of the answer round - arrival of the session.")
    atpot_ps: Float64 = optional_ps("Mean time per token after the first, of the answer round.")
    session_e2el_ps: Int64 = optional_ps("Last token - arrival of the session.")
    planning_tokens_per_s: Float64 = column(
        "tokens/s",
        "Tokens of hidden rounds per second from the arrival to the answer round's.",
        nullable=True,
    )
    input_tokens: Int64 = column("tokens", "Prompts of all calls.")
    new_prompt_tokens: Int64 = column(
        "tokens", "The same without what calls repeat of the call before."
    )
    hidden_new_prompt_tokens: Int64 = column("tokens", "The part of it that hidden rounds have.")
    emitted_tokens: Int64 = column("tokens", "Tokens of all answers.")
    hidden_tokens: Int64 = column("tokens", "Tokens of the answers of hidden rounds.")
    cached_tokens: Int64 = column("tokens", "Prompt tokens that the prefix cache held.")
    own_hit_tokens: Int64 = column(
        "tokens", "The part of it that the session's call before had said."
    )
    preemptions: Int32 = column("", "How often its calls were sent back to the queue.")
    tool_ps: Int64 = optional_ps("Tools, between the calls.")
    api_ps: Int64 = optional_ps("Cause `api_ps` of its calls.")
    queue_ps: Int64 = optional_ps("Cause `queue_ps` of its calls.")
    wait_ps: Int64 = optional_ps("Cause `wait_ps` of its calls.")
    prefill_ps: Int64 = optional_ps("Cause `prefill_ps` of its calls.")
    decode_ps: Int64 = optional_ps("Causes `decode_ps` and `offload_ps` of its calls.")
    communication_ps: Int64 = optional_ps("Causes `communication_ps` and `m2n_ps` of its calls.")
    host_ps: Int64 = optional_ps("Cause `host_ps` of its calls.")
    kv_transfer_ps: Int64 = optional_ps("Cause `kv_transfer_ps` of its calls.")
    preemption_ps: Int64 = optional_ps("Causes `preemption_ps` and `reconfigure_ps` of its calls.")


class StepColumns(Table):
    """One row per engine step and group."""

    group: Int16 = column("", "Index of the model serving group.")
    schedule_ps: Int64 = column("ps", "When the batch was formed.")
    start_ps: Int64 = column(
        "ps", "When the device began with the batch; -1 if the run ended before the step did."
    )
    end_ps: Int64 = column("ps", "When the device ended the batch; -1 if the run ended before.")
    tokens: Int32 = column("tokens", "Tokens scheduled in the batch.")
    padded_tokens: Int32 = column("tokens", "Tokens computed, padded to a captured graph size.")
    prefill_tokens: Int32 = column("tokens", "Scheduled tokens that belong to prompts.")
    sequences: Int32 = column("sequences", "Sequences in the batch.")
    decode_sequences: Int32 = column("sequences", "Sequences in the batch that decode.")
    running: Int32 = column("sequences", "Sequences that run after scheduling.")
    waiting: Int32 = column("sequences", "Sequences that wait after scheduling.")
    free_blocks: Int32 = column("blocks", "KV blocks that are free after scheduling.")
    preempted: Int32 = column("sequences", "Sequences preempted while the batch was formed.")


class SeriesColumns(Table):
    """One row per log interval and group."""

    time_ps: Int64 = column("ps", "End of the interval.")
    group: Int16 = column("", "Index of the model serving group.")
    running: Int32 = column("sequences", "Sequences that run at the end of the interval.")
    waiting: Int32 = column("sequences", "Sequences that wait at the end of the interval.")
    kv_blocks_used: Int32 = column("blocks", "KV blocks referenced at the end of the interval.")
    kv_blocks_cached: Int32 = column("blocks", "Free KV blocks whose content can be reused.")
    prompt_tokens: Int64 = column("tokens", "Prompt tokens computed or found cached.")
    generation_tokens: Int64 = column("tokens", "Tokens emitted in the interval.")
    hit_tokens: Int64 = column("tokens", "Tokens found in the prefix cache in the interval.")
    queried_tokens: Int64 = column("tokens", "Tokens looked up in the prefix cache.")
    preemptions: Int32 = column("", "Preemptions in the interval.")


class PowerColumns(Table):
    """One row per log interval and node that has a power section."""

    time_ps: Int64 = column("ps", "End of the interval.")
    node: Int16 = column("", "Index of the node; -1 is the CXL pool.")
    accelerators_w: Float64 = column("W", "Mean power of the accelerators in the interval.")
    cpu_w: Float64 = column("W", "Mean power of the CPUs in the interval.")
    dram_w: Float64 = column("W", "Mean power of the memory in the interval.")
    links_w: Float64 = column("W", "Mean power of the links in the interval.")
    nics_w: Float64 = column("W", "Mean power of the network cards in the interval.")
    storage_w: Float64 = column("W", "Mean power of the storage in the interval.")
    other_w: Float64 = column("W", "Mean power of everything else in the interval.")


class KvTierSeriesColumns(Table):
    """One row per log interval and pool of KV below the devices."""

    time_ps: Int64 = column("ps", "End of the interval.")
    pool: Int32 = column("", "Index of the pool in `kv_tiers` of the summary.")
    used_bytes: Int64 = column("bytes", "Bytes held, or on their way, at the end of the interval.")
    hit_tokens: Int64 = column("tokens", "Tokens recalled by requests admitted in the interval.")
    recalled_bytes: Int64 = column("bytes", "Bytes of those recalls.")
    written_bytes: Int64 = column("bytes", "Bytes of writes that began in the interval.")
    evicted_chunks: Int64 = column("chunks", "Chunks given up in the interval.")
    thrashed_chunks: Int64 = column("chunks", "Chunks written again soon after their eviction.")


class LinkSeriesColumns(Table):
    """One row per log interval and link of the shared network that was in use."""

    time_ps: Int64 = column("ps", "End of the interval.")
    link: Int32 = column("", "Number of the link; those of a topology come first.")
    bytes: Int64 = column("B", "Bytes that the link carried in the interval.")
    busy_ps: Int64 = column("ps", "Time of the interval with a transfer on the link.")


class KvTierTotals(Table):
    """One row per pool of KV below the devices: `kv_tiers` of the summary."""

    name: Text = column("", "Name of the pool.")
    capacity_bytes: Int64 = column("bytes", "Size of the pool.")
    used_bytes: Int64 = column("bytes", "Bytes held, or on their way, at the end of the run.")
    peak_bytes: Int64 = column("bytes", "Most bytes held at once.")
    chunks: Int64 = column("chunks", "Chunks held at the end of the run.")
    hit_chunks: Int64 = column("chunks", "Chunks recalled.")
    hit_tokens: Int64 = column("tokens", "Tokens recalled.")
    missed_chunks: Int64 = column("chunks", "Lookups by admitted requests that missed.")
    written_chunks: Int64 = column("chunks", "Chunks written.")
    unwritten_chunks: Int64 = column("chunks", "Chunks not written because no room could be made.")
    evicted_chunks: Int64 = column("chunks", "Chunks given up.")
    thrashed_chunks: Int64 = column("chunks", "Chunks written again soon after their eviction.")
    recalled_bytes: Int64 = column("bytes", "Bytes recalled.")
    written_bytes: Int64 = column("bytes", "Bytes written.")
    operations: Int64 = column("", "Reads and writes of a storage device.")
    queued_operations: Int64 = column("", "Reads and writes that had to wait for others.")
    consistent: Int64 = column(
        "", "Whether a recount of the pool's bytes agrees: 1 or 0.", in_files=False
    )


class LinkColumns(Table):
    """One row per link of the shared network."""

    bytes_per_s: Int64 = column("B/s", "Bandwidth of the link.")
    bytes: Int64 = column("B", "Bytes that the link carried.")
    transfers: Int64 = column("", "Transfers that used the link.")
    busy_ps: Int64 = column("ps", "Time with a transfer on the link.")


class TransferColumns(Table):
    """One row per transfer of the network that groups share, in the order of their starts."""

    sender: Int32 = column("", "Place on the network that sends.")
    receiver: Int32 = column("", "Place on the network that receives.")
    bytes: Int64 = column("B", "Size.")
    purpose: Int32 = column("", "Number of what it is for (`llmsim._native.Purpose`).")
    start_ps: Int64 = column("ps", "When its first byte may leave.")
    end_ps: Int64 = column("ps", "When its last byte is there; -1 if it is not.")


class NodeSpanColumns(Table):
    """One row per node of a step whose time the step alone does not tell, by group and time: what
    crosses links that others use, copies, and where members and stages begin.
    """

    step: Int64 = column("", "Number of the step among all of the group's, from 0.")
    group: Int32 = column("", "Number of the group.")
    role: Int32 = column("", "What the node does, as `NodeRole` has it.")
    op: Int32 = column("", "Number of the operator in the group's program; -1 without one.")
    execution: Int32 = column("", "Which execution of the operator it is, from 0; -1 without one.")
    lane: Int32 = column("", "Half or lane of the batch; 0 stands for the whole batch.")
    stage: Int32 = column("", "Pipeline stage of the node.")
    rank: Int32 = column("", "Rank of the stage; -1 where all of them run the node together.")
    start_ps: Int64 = column("ps", "When it began; -1 where that follows from what it waited for.")
    end_ps: Int64 = column("ps", "When its ranks went on.")


class GroupCounters(Table):
    """Totals of a run, one row per group."""

    steps: Int64 = column("", "Batches executed.")
    steps_below_lower_bound: Int64 = column("", "Batches faster than the data sheet allows.")
    steps_full_graph: Int64 = column("", "Batches that replayed a full CUDA graph.")
    steps_piecewise_graph: Int64 = column("", "Batches with CUDA graphs around attention.")
    steps_without_graph: Int64 = column("", "Batches launched operator by operator.")
    launching_ps: Int64 = column("ps", "Time that steps lost to a host that launched no faster.")
    slowed_ps: Int64 = column("ps", "Time that steps lost to the clock of the card's power limit.")
    scheduled_sequences: Int64 = column("sequences", "Scheduled sequences, summed over batches.")
    attended_tokens: Int64 = column(
        "", "Pairs of a scheduled token and a token that it attends to, itself included."
    )
    kv_read_tokens: Int64 = column(
        "tokens", "Tokens of KV that attention read, once per sequence and batch."
    )
    scheduled_tokens: Int64 = column("tokens", "Scheduled tokens, recomputed ones included.")
    unlaunched_tokens: Int64 = column("tokens", "Scheduled tokens of batches never launched.")
    open_tokens: Int64 = column("tokens", "Tokens computed for requests that did not finish.")
    started_with_tokens: Int64 = column("tokens", "Tokens that requests had when they first ran.")
    discarded_tokens: Int64 = column("tokens", "Computed tokens that preemptions threw away.")
    max_model_len: Int64 = column("tokens", "Longest sequence that the group accepts.")
    prompt_tokens: Int64 = column("tokens", "Prompt tokens computed or found cached.")
    generation_tokens: Int64 = column("tokens", "Tokens emitted.")
    preemptions: Int64 = column("", "Sequences sent back to the waiting queue.")
    recomputed_tokens: Int64 = column("tokens", "Tokens computed again after a preemption.")
    prefix_queried_tokens: Int64 = column("tokens", "Tokens looked up in the prefix cache.")
    prefix_hit_tokens: Int64 = column("tokens", "Tokens found in the prefix cache.")
    busy_ps: Int64 = column("ps", "Time with a batch on the device.")
    dummy_ps: Int64 = column("ps", "Part of busy_ps in steps of ranks without requests.")
    communication_ps: Int64 = column("ps", "Time of collectives and hand-overs between stages.")
    m2n_ps: Int64 = column("ps", "Time that steps waited for rows between attention and FFN.")
    m2n_bytes: Int64 = column("bytes", "Such rows that one device of each stage sent.")
    afd_ps: Int64 = column("ps", "Time of the steps of both sides, with an afd_group.")
    afd_computing_ps: Int64 = column("ps", "Time of the group's operators in these steps.")
    afd_dummy_ps: Int64 = column("ps", "Part of afd_computing_ps in steps without requests.")
    communication_slowed_ps: Int64 = column(
        "ps", "Time of those collectives that other traffic on their links made longer."
    )
    communication_lost_ps: Int64 = column("ps", "How much longer they took than alone.")
    peak_blocks_used: Int64 = column("blocks", "Most KV blocks referenced at once.")
    total_blocks: Int64 = column("blocks", "KV blocks of the pool, the null block included.")
    free_blocks: Int64 = column("blocks", "KV blocks that are free at the end of the run.")
    pool_consistent: Int64 = column("", "Whether a recount of the pool's blocks agrees: 1 or 0.")
    running: Int64 = column("requests", "Requests that run at the end of the run.")
    waiting: Int64 = column("requests", "Requests that wait at the end of the run.")
    parked: Int64 = column("requests", "Requests that wait for KV at the end of the run.")
    idle_with_work: Int64 = column("", "Times that an idle group had work that it could do.")
    finished: Int64 = column("requests", "Requests that completed.")
    handed_over: Int64 = column("requests", "Requests whose prompt was computed for another group.")
    cancelled: Int64 = column("requests", "Requests dropped because their clients gave up.")
    failed: Int64 = column("requests", "Requests that ended with an error.")
    failed_loads: Int64 = column("", "Loads of KV that failed (kv_load_failure_rate).")
    lost_tokens: Int64 = column("tokens", "Tokens whose KV those loads were to bring and did not.")
    crowded_lora_steps: Int64 = column(
        "", "Steps with more LoRA adapters than max_loras, in which vLLM before 0.33 ends."
    )
    verifications: Int64 = column(
        "sequences", "Sequences whose drafts a batch verified, summed over batches."
    )
    drafted_tokens: Int64 = column("tokens", "Drafts that were verified.")
    accepted_tokens: Int64 = column("tokens", "Drafts that held.")
    verified_tokens: Int64 = column("tokens", "Tokens emitted by verifications.")
    encoded_inputs: Int64 = column("", "Images and other inputs that the encoder computed.")
    encoded_tokens: Int64 = column("tokens", "Tokens of the inputs that the encoder computed.")
    host_cache_written_tokens: Int64 = column("tokens", "Tokens that HiCache copied to the host.")
    host_cache_loaded_tokens: Int64 = column("tokens", "Tokens that HiCache loaded back.")
    host_cache_dropped_tokens: Int64 = column(
        "tokens", "Tokens that left the device without a copy in HiCache's host pool."
    )
    host_cache_evicted_tokens: Int64 = column("tokens", "Tokens that left HiCache's host pool.")
    host_cache_stored_tokens: Int64 = column("tokens", "Tokens that HiCache wrote to storage.")
    host_cache_prefetched_tokens: Int64 = column(
        "tokens", "Tokens that HiCache read from storage into its host pool."
    )
    host_cache_erased_tokens: Int64 = column(
        "tokens", "Tokens that left HiCache's storage, which was full."
    )
    offloading_stored_tokens: Int64 = column("tokens", "Tokens that kv_offloading_size stored.")
    offloading_loaded_tokens: Int64 = column("tokens", "Tokens that it loaded back.")
    offloading_evicted_tokens: Int64 = column("tokens", "Tokens that left its pool.")
    offloading_refused_tokens: Int64 = column(
        "tokens", "Tokens that found no room in its pool, each time that they were offered."
    )
    offloading_deferred_lookups: Int64 = column(
        "", "Lookups that passed over a request for a step, since a copy was under way."
    )
    encoder_cache_hits: Int64 = column("", "Inputs whose encoder output was still there.")
    rejected: Int64 = column("requests", "Requests that can never run in their group.")


CORE_TABLES: dict[str, type[Table]] = {
    "requests": RequestColumns,
    "kv_transfers": KvTransferColumns,
    "blame": LatencyCauses,
    "steps": StepColumns,
    "series": SeriesColumns,
    "kv_tier_series": KvTierSeriesColumns,
    "link_series": LinkSeriesColumns,
    "kv_tiers": KvTierTotals,
    "network": LinkColumns,
    "transfers": TransferColumns,
    "node_spans": NodeSpanColumns,
    "counters": GroupCounters,
}
"""Tables that the core fills, by the names under which it declares them."""

_SHOWN = tuple(one for one in RequestColumns.COLUMNS if one.in_files)
FILES: dict[str, tuple[Column, ...]] = {
    "requests.parquet": (
        *RequestNames.COLUMNS,
        *(one for one in _SHOWN if one.nullable),
        *RequestSizes.COLUMNS,
        *(one for one in _SHOWN if not one.nullable),
        *RequestDurations.COLUMNS,
        *LatencyCauses.COLUMNS,
        *(one for one in KvTransferColumns.COLUMNS if one.in_files),
        *RequestEnergy.COLUMNS,
        *RequestTokens.COLUMNS,
    ),
    "steps.parquet": StepColumns.COLUMNS,
    "series.parquet": SeriesColumns.COLUMNS,
    "sessions.parquet": SessionColumns.COLUMNS,
    "kv_tiers.parquet": KvTierSeriesColumns.COLUMNS,
    "links.parquet": LinkSeriesColumns.COLUMNS,
    "power.parquet": PowerColumns.COLUMNS,
}
"""Tables of a run folder: their columns, in the order of the file."""
