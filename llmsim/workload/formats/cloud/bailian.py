"""Alibaba's Bailian (Qwen) usage traces: JSON Lines, `timestamp` in s, block ids of 16 tokens,
turns linked by chat ids.

Every turn comes at its recorded time (how long the server took is not in the trace, so no think
time can be known); turns with one root chat carry its id as their session.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from llmsim.workload.formats.batches import Batch, each
from llmsim.workload.formats.cloud.block_counts import BlockCounts
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import all_scaled_ns, json_batches, scaled_ns
from llmsim.workload.formats.source import Rows, Source
from llmsim.workload.formats.table import Table

BLOCK_TOKENS = 16


class Row(msgspec.Struct, gc=False):
    chat_id: int
    timestamp: float
    input_length: Annotated[int, Meta(ge=0)]
    output_length: Annotated[int, Meta(ge=0)]
    parent_chat_id: int = -1
    hash_ids: list[int | str] | None = None
    turn: int = 1
    type: str = ""


def detect(head: Head) -> bool:
    return head.kind in ("lines", "object") and head.has(
        "chat_id", "timestamp", "input_length", "output_length"
    )


def read(source: Source, head: Head) -> Table:
    table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS, labels=True)
    blocks = BlockCounts(table, table.block_tokens)
    root_of: dict[int, int] = {}  # of chats that are no roots themselves
    for batch in json_batches(table, Row):
        taken = (
            isinstance(batch, Batch)
            and table.wants(len(batch.records))
            and _take_all(table, batch, root_of, blocks)
        )
        for number, row in each(batch) if not taken else ():
            at_ns = scaled_ns(table, number, row.timestamp, 10**9, "timestamp")
            session = str(_root(row, root_of))
            blocks.see_one(number, row.input_length, row.hash_ids)
            table.add(
                number,
                at_ns,
                row.input_length,
                row.output_length,
                session=session,
                ids=row.hash_ids,
            )
            if table.full:
                break
        if table.full:
            break
    blocks.close()
    return table


def _root(row: Row, root_of: dict[int, int]) -> int:
    """The first chat of the row's conversation; `root_of` remembers what follows from the rows so
    far.
    """
    if row.parent_chat_id < 0:
        return row.chat_id
    root = root_of[row.chat_id] = root_of.get(row.parent_chat_id, row.parent_chat_id)
    return root


def _take_all(
    table: Table, batch: Batch[Row], root_of: dict[int, int], blocks: BlockCounts
) -> bool:
    rows = batch.records
    at_ns = all_scaled_ns([row.timestamp for row in rows], 10**9)
    lengths, ids = [row.input_length for row in rows], [row.hash_ids for row in rows]
    taken = at_ns is not None and table.extend(
        Rows(
            batch.numbers,
            at_ns,
            lengths,
            [row.output_length for row in rows],
            labels=[str(_root(row, root_of)) for row in rows],
            ids=ids,
        )
    )
    if taken:
        blocks.see(batch.numbers, lengths, ids)
    return taken
