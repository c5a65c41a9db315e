"""Mooncake's JSON Lines (FAST'25) and the fields that aiperf and aisimulate added: `timestamp` in
ms, block ids of 512.

Two requests with equal leading `hash_ids` share those blocks; the last id of a prompt may name a
partial block. A row of a session with `delay` (ms) comes that long after the last token of the row
before it; one with a timestamp comes then. A file without any times, as ServeGen's batch jobs,
begins as a whole. Prompts may be given as text (mooncake_text).
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from llmsim.core import Workload
from llmsim.workload.block_content_ids import coarser
from llmsim.workload.formats.batches import Batch, each
from llmsim.workload.formats.chat.sharegpt import note_counts
from llmsim.workload.formats.cloud.block_counts import BlockCounts
from llmsim.workload.formats.cloud.mooncake_text import LIMITS, TEXTS, Prompts, answer_limit
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import all_scaled_ns, json_batches, scaled_ns
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import Table
from llmsim.workload.limits import MAX_PRIORITY, MIN_PRIORITY

BLOCK_TOKENS = 512
NS_PER_MS = 1_000_000
Count = Annotated[int, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]


class Row(msgspec.Struct, gc=False):
    timestamp: float | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[int | str] | None = None
    session_id: str | int | None = None
    delay: float | None = None
    delay_ms: float | None = None
    priority: Priority | None = None
    request_id: str | int | None = None
    model: str | None = None
    created_time: float | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    text_input: str | None = None
    messages: list[dict[str, Any]] | None = None
    message_mode: str | None = None
    tools: list[dict[str, Any]] | None = None
    payload: dict[str, Any] | None = None


SAID = ("text_input", "messages", "payload")


def detect(head: Head) -> bool:
    lengths = head.has("input_length", "output_length") or head.has("input_tokens", "output_tokens")
    lines = head.kind in ("lines", "object") and not head.has("chat_id")
    timed = any(head.has(name) for name in ("output_length", "timestamp", "delay", "session_id"))
    said = timed and any(head.has(name) for name in SAID)
    return lines and (lengths or said or head.has("input_length", "hash_ids"))


def read(source: Source, head: Head) -> Table:
    table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS)
    blocks = BlockCounts(table, table.block_tokens)
    stops_early = bool(head.first and "session_id" not in head.first)
    times = ("timestamp", "created_time", "delay", "delay_ms")
    untimed = head.first is not None and all(head.first.get(name) is None for name in times)
    prompts = Prompts(source)
    if untimed and source.options.rate is None:
        table.say("no timestamps, so all requests begin at 0; rate= spreads them")
    for batch in json_batches(table, Row):
        if not isinstance(batch, Batch) or not (
            table.wants(len(batch.records)) and _take_all(table, batch, blocks)
        ):
            for number, row in each(batch):
                _see(blocks, number, row)
                take(table, number, spelt_out(table, number, row, prompts), untimed=untimed)
                if table.full and stops_early:
                    break
        if table.full and stops_early:
            break
    blocks.close()
    if prompts.how:
        note_counts(table, TEXTS, prompts.how)
    return table


def spelt_out(table: Table, number: int, row: Row, prompts: Prompts) -> Row:
    """The row with its prompt's length, where it holds the prompt itself."""
    if row.input_length is not None or row.input_tokens is not None:
        return row
    answer = row.output_length if row.output_length is not None else row.output_tokens
    if row.text_input is not None:
        row.input_length = prompts.tokens(row.text_input)
    elif row.messages is not None:
        if row.message_mode not in (None, "history", "delta"):
            raise table.refusal(
                number, f'"message_mode" is "{row.message_mode}"; it may be "history" or "delta"'
            )
        delta = row.message_mode == "delta"
        row.input_length = prompts.of_messages(
            row.messages, row.tools, _text(row.session_id), answer or 0, delta=delta
        )
    elif row.payload is not None:
        row.input_length = prompts.of_payload(row.payload)
        limit = answer_limit(table, number, row.payload, LIMITS, "payload.")
        row.output_length = answer if answer is not None else limit
    return row


def _see(blocks: BlockCounts, number: int, row: Row) -> None:
    """Compares a row's ids with its length, where that is counted and no estimate."""
    length = row.input_length if row.input_length is not None else row.input_tokens
    if length is not None:
        blocks.see_one(number, length, row.hash_ids)


def _is_plain(row: Row) -> bool:
    """Whether a row has a time and lengths, no name, no rank, and waits for no other."""
    # Spelt out, for every row of a long file passes here.
    lacks = row.timestamp is None or row.input_length is None or row.output_length is None
    named = row.session_id is not None or row.request_id is not None
    waits = row.delay is not None or row.delay_ms is not None
    return not (lacks or named or waits or row.priority is not None)


def _take_all(table: Table, batch: Batch[Row], blocks: BlockCounts) -> bool:
    """Adds rows that have a time, lengths and content, and nothing else; False where some have more
    or less.
    """
    rows = batch.records
    if not all(map(_is_plain, rows)):
        return False
    at_ns = all_scaled_ns([row.timestamp for row in rows], NS_PER_MS)  # type: ignore[misc]
    lengths: list[int] = [row.input_length for row in rows]  # type: ignore[misc]
    ids = [row.hash_ids for row in rows]
    taken = at_ns is not None and table.extend(
        Rows(
            batch.numbers,
            at_ns,
            lengths,
            [row.output_length for row in rows],  # type: ignore[misc]
            ids=ids,
            models=Texts.of([row.model for row in rows]),
        )
    )
    if taken:
        blocks.see(batch.numbers, lengths, ids)
    return taken


def take(table: Table, number: int, row: Row, *, untimed: bool = False) -> None:
    """Adds one row; refuses it where it lacks a length or, unless the whole file is `untimed`, a
    time.
    """
    tokens_in, tokens_out = _lengths(table, number, row)
    at_ns, after_ns = _times(table, number, row, untimed=untimed)
    added = table.add(
        number,
        at_ns,
        tokens_in,
        tokens_out,
        after_ns=after_ns,
        session=_text(row.session_id),
        ids=row.hash_ids,
        model=row.model,
    )
    if added and (row.request_id is not None or row.priority is not None):
        table.detail(request_id=_text(row.request_id), priority=row.priority)


def _lengths(table: Table, number: int, row: Row) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    tokens_in = row.input_length if row.input_length is not None else row.input_tokens
    tokens_out = row.output_length if row.output_length is not None else row.output_tokens
    if tokens_in is not None and tokens_out is not None:
        return tokens_in, tokens_out
    missing = "input_length" if tokens_in is None else "output_length"
    instead = " (or text_input, messages, payload)" if tokens_in is None else ""
    raise table.refusal(
        number,
        f'"{missing}" is missing; a row needs input_length{instead}, output_length and timestamp',
    )


def _times(table: Table, number: int, row: Row, *, untimed: bool) -> tuple[int, int]:
    """When a row arrives, and how long behind the row before it; 0 and -1 where it does not say."""
    at_ms = row.timestamp if row.timestamp is not None else row.created_time
    delay_ms = row.delay if row.delay is not None else row.delay_ms
    follows = delay_ms is not None and row.session_id is not None
    if at_ms is None and not untimed and not follows:
        raise table.refusal(
            number,
            '"timestamp" is missing; only the later rows of a session may have "delay" instead',
        )
    if delay_ms is not None and delay_ms < 0:
        raise table.refusal(number, f'"delay" is {delay_ms:g}, but must be 0 or more')
    if untimed and at_ms is not None:
        raise table.refusal(
            number, "has a timestamp, but the first row has none: all rows need one, or no row"
        )
    if at_ms is not None:
        return scaled_ns(table, number, at_ms, NS_PER_MS, "timestamp"), -1
    if delay_ms is not None:
        return 0, scaled_ns(table, number, delay_ms, NS_PER_MS, "delay")
    return 0, -1


def _text(name: str | int | None) -> str | None:
    return None if name is None else str(name)


def rows(workload: Workload, block_tokens: int = BLOCK_TOKENS) -> list[dict[str, object]]:
    """A workload as rows of this format, timestamps rounded to whole ms. Its granularity must
    divide `block_tokens`.
    """
    ids = coarser(workload, block_tokens)
    arrival_ms = ((workload.arrival_ps + 500_000_000) // 1_000_000_000).tolist()
    inputs, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    delays_ms = ((workload.tool_delay_ps + 500_000_000) // 1_000_000_000).tolist()
    priority = getattr(workload, "priority", None)
    made: list[dict[str, object]] = []
    line = 0
    for row, hash_ids in enumerate(ids):
        head = workload.arrival_ps[row] >= 0
        line += bool(head)
        fields: dict[str, object] = (
            {"timestamp": arrival_ms[row]} if head else {"delay": delays_ms[row - 1]}
        )
        fields |= {"input_length": inputs[row], "output_length": outputs[row], "hash_ids": hash_ids}
        chained = not head or workload.next_call[row] >= 0
        if workload.session_id and workload.session_id[row]:
            fields["session_id"] = workload.session_id[row]
        elif chained:
            fields["session_id"] = f"session-{line - 1}"
        if workload.request_id:
            fields["request_id"] = workload.request_id[row]
        if workload.model[row] >= 0:
            fields["model"] = workload.models[workload.model[row]]
        if priority is not None and len(priority) and priority[row]:
            fields["priority"] = int(priority[row])
        made.append(fields)
    return made
