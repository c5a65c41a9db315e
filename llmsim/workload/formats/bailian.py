"""Alibaba's Bailian (Qwen) usage traces: JSON Lines, `timestamp` in s, block ids of 16 tokens, turns linked by chat
ids.

Every turn comes at its recorded time (how long the server took is not in the trace, so no think time can be known);
turns with one root chat carry its id as their session.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_lines, scaled_ns
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "bailian", "Bailian (Qwen)"
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
    return head.kind in ("lines", "object") and head.has("chat_id", "timestamp", "input_length", "output_length")


def read(source: Source, head: Head) -> Table:
    table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS)
    root_of: dict[int, int] = {}  # of chats that are no roots themselves
    for number, row in json_lines(table, Row):
        root = row.chat_id
        if row.parent_chat_id >= 0:
            root = root_of[row.chat_id] = root_of.get(row.parent_chat_id, row.parent_chat_id)
        at_ns = scaled_ns(table, number, row.timestamp, 10**9, "timestamp")
        table.add(number, at_ns, row.input_length, row.output_length, session=str(root), ids=row.hash_ids, aside=True)
        if table.full:
            break
    return table
