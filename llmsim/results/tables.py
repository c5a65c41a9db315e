"""Names, types and units of the columns that a run produces; the one place where they
are listed.
"""

from dataclasses import dataclass
from typing import Literal

from llmsim.core import COMPONENTS

DType = Literal["int16", "int32", "int64", "float64"]


@dataclass(frozen=True)
class Column:
    """One column: numpy type, unit and meaning."""

    name: str
    dtype: DType
    unit: str
    meaning: str


GROUP = Column("group", "int16", "", "index of the model serving group")
INTERVAL_END = Column("time_ps", "int64", "ps", "end of the interval")

STEPS = (
    GROUP,
    Column("schedule_ps", "int64", "ps", "when the batch was formed"),
    Column("start_ps", "int64", "ps", "when the device began with it"),
    Column("end_ps", "int64", "ps", "when the device ended it"),
    Column("tokens", "int32", "tokens", "scheduled in the batch"),
    Column("padded_tokens", "int32", "tokens", "computed, after padding to a captured graph size"),
    Column("prefill_tokens", "int32", "tokens", "of those scheduled, tokens of prompts"),
    Column("sequences", "int32", "sequences", "in the batch"),
    Column("decode_sequences", "int32", "sequences", "in the batch that decode"),
    Column("running", "int32", "sequences", "running after scheduling"),
    Column("waiting", "int32", "sequences", "waiting after scheduling"),
    Column("free_blocks", "int32", "blocks", "free after scheduling"),
    Column("preempted", "int32", "sequences", "preempted while the batch was formed"),
)
"""One row per engine step and group."""

SERIES = (
    INTERVAL_END,
    GROUP,
    Column("running", "int32", "sequences", "running at the end"),
    Column("waiting", "int32", "sequences", "waiting at the end"),
    Column("kv_blocks_used", "int32", "blocks", "referenced at the end"),
    Column("kv_blocks_cached", "int32", "blocks", "free at the end, but with reusable content"),
    Column(
        "prompt_tokens", "int64", "tokens", "of prompts computed or found cached in the interval"
    ),
    Column("generation_tokens", "int64", "tokens", "emitted in the interval"),
    Column("hit_tokens", "int64", "tokens", "found in the prefix cache in the interval"),
    Column("queried_tokens", "int64", "tokens", "looked up in the prefix cache in the interval"),
    Column("preemptions", "int32", "", "in the interval"),
)
"""One row per log interval and group."""

POWER = (
    INTERVAL_END,
    Column("node", "int16", "", "index of the node; -1: the CXL pool"),
    *(
        Column(f"{name}_w", "float64", "W", f"mean power of {name} in the interval")
        for name in COMPONENTS
    ),
)
"""One row per log interval and node that has a power section."""

KV_TIER_SERIES = (
    INTERVAL_END,
    Column("pool", "int32", "", "index in kv_tiers of the summary"),
    Column("used_bytes", "int64", "bytes", "held or on their way at the end"),
    Column("hit_tokens", "int64", "tokens", "recalled by requests admitted in the interval"),
    Column("recalled_bytes", "int64", "bytes", "of those recalls"),
    Column("written_bytes", "int64", "bytes", "of writes that began in the interval"),
    Column("evicted_chunks", "int64", "chunks", "given up in the interval"),
    Column("thrashed_chunks", "int64", "chunks", "written again soon after they were given up"),
)
"""One row per interval and pool of KV below the devices."""

REQUEST_TIMES = (
    Column("arrival_ps", "int64", "ps", "when the client sent it"),
    Column("queued_ps", "int64", "ps", "when the engine saw it"),
    Column("scheduled_ps", "int64", "ps", "when it first ran"),
    Column("first_token_ps", "int64", "ps", "end of the step that gave its first token"),
    Column("finish_ps", "int64", "ps", "end of the step that gave its last token"),
    Column("cancelled_ps", "int64", "ps", "when its engine dropped it, as its client had given up"),
)
REQUEST_AMOUNTS = (
    Column("input_tokens", "int32", "tokens", "of the prompt"),
    Column("output_tokens", "int32", "tokens", "that it would emit if nothing cut it"),
    Column("emitted_tokens", "int32", "tokens", "emitted"),
    Column(
        "cached_tokens",
        "int32",
        "tokens",
        "of the prompt found in the prefix cache when it first ran",
    ),
    Column("preemptions", "int32", "", "how often it was sent back to the queue"),
)
REQUEST_DURATIONS = (
    Column("ttft_ps", "int64", "ps", "first token - arrival"),
    Column("e2el_ps", "int64", "ps", "last token - arrival"),
    Column("queueing_ps", "int64", "ps", "first scheduled - arrival"),
)
"""One row per request of the workload; a time that never came is null."""

HANDOVERS = (
    Column(
        "prefill_group", "int16", "", "group that computed the prompt, where another one decoded"
    ),
    Column("prefill_end_ps", "int64", "ps", "when the prompt was computed"),
    Column(
        "kv_reserved_ps", "int64", "ps", "when the decode group held blocks for all of the prompt"
    ),
    Column("kv_landed_ps", "int64", "ps", "when the last byte of its KV had arrived there"),
    Column("decode_scheduled_ps", "int64", "ps", "when it first ran in the decode group"),
    Column(
        "decode_cached_tokens", "int32", "tokens", "of the prompt that the decode group had cached"
    ),
    Column("kv_transfer_bytes", "int64", "B", "of KV that were moved"),
)
"""One row per request; null where one group did everything."""

BLAME = (
    Column("api_ps", "int64", "ps", "from arrival until the engine saw the request"),
    Column("queue_ps", "int64", "ps", "waiting in the engine until first scheduled"),
    Column("wait_ps", "int64", "ps", "scheduled or running while the device ran steps without it"),
    Column("prefill_ps", "int64", "ps", "computing up to the first token"),
    Column("decode_ps", "int64", "ps", "computing the later tokens"),
    Column("communication_ps", "int64", "ps", "collectives of the steps it took part in"),
    Column("host_ps", "int64", "ps", "device idle between those steps"),
    Column(
        "kv_transfer_ps",
        "int64",
        "ps",
        "its KV on its way from the prefill group to the decode group",
    ),
    Column(
        "preemption_ps",
        "int64",
        "ps",
        "between the last token before a preemption and the first after it",
    ),
    Column(
        "abandoned_ps",
        "int64",
        "ps",
        "of a cancelled one: from its last token, or its start, until it was dropped",
    ),
)
"""Parts of a finished request's latency, or of a cancelled one's time in the system, which they add
up to exactly.
"""

COUNTERS = (
    Column("steps", "int64", "", "batches executed"),
    Column("steps_full_graph", "int64", "", "of them, replays of a full CUDA graph"),
    Column("steps_piecewise_graph", "int64", "", "of them, with graphs around attention"),
    Column("steps_without_graph", "int64", "", "of them, launched operator by operator"),
    Column(
        "launching_ps",
        "int64",
        "ps",
        "by which steps were longer because the host launched no faster",
    ),
    Column("scheduled_tokens", "int64", "tokens", "scheduled, recomputed ones included"),
    Column("scheduled_sequences", "int64", "sequences", "scheduled, summed over the batches"),
    Column(
        "attended_tokens",
        "int64",
        "",
        "pairs of a scheduled token and a token that it attends to, itself included",
    ),
    Column(
        "kv_read_tokens",
        "int64",
        "tokens",
        "of KV that attention read, once per sequence and batch",
    ),
    Column("prompt_tokens", "int64", "tokens", "of prompts computed or found cached"),
    Column("generation_tokens", "int64", "tokens", "emitted"),
    Column("preemptions", "int64", "", "sequences sent back to the waiting queue"),
    Column("recomputed_tokens", "int64", "tokens", "computed again after a preemption"),
    Column("prefix_queried_tokens", "int64", "tokens", "looked up in the prefix cache"),
    Column("prefix_hit_tokens", "int64", "tokens", "found there"),
    Column("busy_ps", "int64", "ps", "with a batch on the device"),
    Column("peak_blocks_used", "int64", "blocks", "most referenced at once"),
    Column("total_blocks", "int64", "blocks", "of the pool, the null block included"),
    Column("finished", "int64", "requests", "completed"),
    Column("handed_over", "int64", "requests", "whose prompt it computed for another group"),
    Column("cancelled", "int64", "requests", "dropped because their clients gave up"),
    Column(
        "verifications",
        "int64",
        "sequences",
        "whose drafts a batch verified, summed over the batches",
    ),
    Column("drafted_tokens", "int64", "tokens", "that were verified"),
    Column("accepted_tokens", "int64", "tokens", "of them that held"),
    Column("verified_tokens", "int64", "tokens", "emitted by verifications"),
    Column("rejected", "int64", "requests", "that can never run in their group"),
)
"""Totals, one value per group."""
