"""ShareGPT conversations (a JSON list): each exchange is a request whose prompt repeats the conversation so far.

There are no arrival times: all conversations begin at 0 unless `rate` spreads them. Without a tokenizer a text of B
bytes of UTF-8 counts as ceil(B / 4) tokens, and at least 1: English is near 4 bytes per token in current
vocabularies, other scripts scatter around it. With one (`tokenizer=tokenizer.json`, package `tokenizers`) the lengths
are exact for the texts alone; no chat template is added in either case.
"""

import importlib
from collections.abc import Callable
from typing import Any

from llmsim.config.errors import InputError
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_values
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "sharegpt", "ShareGPT"
BYTES_PER_TOKEN = 4
ASKING, ANSWERING = {"human", "user", "system"}, {"gpt", "assistant", "chatgpt", "bing", "bard"}


def detect(head: Head) -> bool:
    return head.kind in ("array", "lines", "object") and (head.has("conversations") or head.has("conversation"))


def read(source: Source, head: Head) -> Table:
    table = Table(source)
    count, how = _counter(source)
    taken = 0
    for line, column, value in json_values(source.path):
        exchanges = list(_exchanges(table, line, column, value))
        if source.options.turns == "first":
            exchanges = exchanges[:1]
        if not exchanges:
            continue
        name = value.get("id", value.get("conversation_id"))
        _take(table, line, str(taken if name is None else name), exchanges, count)
        taken += 1
        if table.full:
            break
    table.notes.append(f"{source.path}: token counts {how}")
    if source.options.rate is None:
        table.notes.append(f"{source.path}: conversations have no times and all begin at 0; rate= spreads them")
    return table


def _take(table: Table, line: int, name: str, exchanges: list[tuple[str, str]], count: Callable[[str], int]) -> None:
    history, previous = 0, -1
    for question, answer in exchanges:
        asked, answered = count(question), count(answer)
        session = name if len(exchanges) > 1 else None
        if not table.add(line, 0, history + asked, answered, after_ns=0 if previous >= 0 else -1, session=session):
            continue
        if len(exchanges) > 1:
            table.detail(repeats=(previous, history))
        history += asked + answered
        previous = len(table) - 1


def _exchanges(table: Table, line: int, column: int, value: Any) -> list[tuple[str, str]]:
    """(all that was said since the last answer, answer) of a conversation."""
    turns = value.get("conversations", value.get("conversation")) if isinstance(value, dict) else None
    if not isinstance(turns, list):
        raise table.refusal(line, 'not a conversation: "conversations" must be a list of turns', column)
    made, asked = [], ""
    for index, turn in enumerate(turns):
        turn = turn if isinstance(turn, dict) else {}
        who, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(who, str) or not isinstance(said, str):
            raise table.refusal(line, f'"conversations[{index}]" needs "from" and "value", both texts', column)
        if who.lower() in ANSWERING:
            if asked and said:
                made.append((asked, said))
            asked = ""
        elif who.lower() in ASKING:
            asked += said
    return made


def _counter(source: Source) -> tuple[Callable[[str], int], str]:
    path = source.options.tokenizer
    if path is None:
        how = f"are estimates, one token per {BYTES_PER_TOKEN} bytes of text; tokenizer= counts them"
        return lambda text: max(1, -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)), how
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise InputError(
            f'tokenizer "{path}" needs the package tokenizers (pip install tokenizers), or lengths are estimated'
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise InputError(f'tokenizer "{path}" cannot be read ({error}); name a tokenizer.json') from None
    return lambda text: max(1, len(tokenizer.encode(text, add_special_tokens=False).ids)), f"are those of {path}"
