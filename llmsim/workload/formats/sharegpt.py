"""ShareGPT conversations (a JSON list): each exchange is a request whose prompt repeats the conversation so far.

There are no arrival times: all conversations begin at 0 unless `rate` spreads them. Without a tokenizer a text of B
bytes of UTF-8 counts as ceil(B / 4) tokens, and at least 1: English is near 4 bytes per token in current
vocabularies, other scripts scatter around it. With one (`tokenizer=tokenizer.json`, package `tokenizers`) the lengths
are exact for the texts alone; no chat template is added in either case.
"""

import importlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from llmsim.config.errors import InputError
from llmsim.workload.formats.batches import Batch
from llmsim.workload.formats.documents import json_documents
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.source import Rows, Source
from llmsim.workload.formats.table import Table

BYTES_PER_TOKEN = 4
ASKING, ANSWERING = ("human", "user", "system"), ("gpt", "assistant", "chatgpt", "bing", "bard")
NO_TURNS = 'not a conversation: "conversations" must be a list of turns'
TURN = '"conversations[{}]" needs "from" and "value", both texts'
_ROLES = {**dict.fromkeys(ASKING, "asks"), **dict.fromkeys(ANSWERING, "answers")}


class Turn(msgspec.Struct, gc=False, rename={"who": "from", "said": "value"}):
    who: str | None = None
    said: str | None = None
    role: str | None = None
    content: str | None = None


class Conversation(msgspec.Struct, gc=False):
    conversations: list[Turn] | None = None
    conversation: list[Turn] | None = None
    id: str | int | None = None
    conversation_id: str | int | None = None


def detect(head: Head) -> bool:
    return head.kind in ("array", "lines", "object") and (head.has("conversations") or head.has("conversation"))


def read(source: Source, head: Head) -> Table:
    reader = _Reader(source)
    for batch in json_documents(source.path, Conversation):
        if isinstance(batch, Batch):
            reader.take_all(batch)
        else:
            reader.take_value(*batch)
        if reader.full:
            break
    table = reader.table
    table.notes.append(f"{source.path}: token counts {reader.how}")
    if source.options.rate is None:
        table.notes.append(f"{source.path}: conversations have no times and all begin at 0; rate= spreads them")
    return table


class _Reader:
    """Takes conversations, and numbers them: those without a name are called by their number."""

    def __init__(self, source: Source) -> None:
        self.table = Table(source)
        self._options = source.options
        self._only_first = source.options.turns == "first"
        self._count, self.how = _counter(source)
        self._taken = 0
        self._places: list[int] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._sessions: list[str | None] = []
        self._earlier: list[int] = []
        self._repeated: list[int] = []

    @property
    def full(self) -> bool:
        """Whether the conversations that `limit` asks for are there."""
        return 0 < self._options.limit <= self._taken and not self._options.changes_workload

    def take_all(self, batch: Batch[Conversation]) -> None:
        """The conversations of a batch, as far as they are wanted."""
        for index, conversation in enumerate(batch.records):
            problem = self._take(index, conversation)
            if problem:
                line, column = batch.place(index)
                raise self.table.refusal(line, problem, column)
            if self.full:
                break
        self._hand_over(lambda index: batch.place(index)[0])

    def take_value(self, line: int, column: int, value: Any) -> None:
        """One conversation, as Python's json reads it."""
        try:
            problem = self._take(0, msgspec.convert(value, Conversation))
        except msgspec.ValidationError:
            problem = _problem(value)
        if problem:
            raise self.table.refusal(line, problem, column)
        self._hand_over(lambda _: line)

    def _take(self, place: int, conversation: Conversation) -> str:
        """Makes requests of a conversation: all that was said since the last answer, and the answer; each prompt
        repeats what was said before. Returns what is wrong with it, or ""."""
        turns = conversation.conversations if conversation.conversations is not None else conversation.conversation
        if turns is None:
            return NO_TURNS
        asked, history, begun = "", 0, len(self._inputs)
        for index, turn in enumerate(turns):
            who = turn.who if turn.who is not None else turn.role
            said = turn.said if turn.said is not None else turn.content
            if who is None or said is None:
                return TURN.format(index)
            role = _ROLES.get(who) or _ROLES.get(who.lower())
            if role == "asks":
                asked += said
            elif role == "answers":
                if asked and said:
                    question, answer = self._count(asked), self._count(said)
                    before = len(self.table) + len(self._inputs) - 1 if len(self._inputs) > begun else -1
                    self._earlier.append(before)
                    self._repeated.append(history)
                    self._inputs.append(history + question)
                    self._outputs.append(answer)
                    history += question + answer
                    if self._only_first:
                        break
                asked = ""
        self._name(place, len(self._inputs) - begun, conversation)
        return ""

    def _name(self, place: int, made: int, conversation: Conversation) -> None:
        """Says of the last `made` requests where they come from and, of several, whose session they are."""
        if made == 0:
            return
        if made == 1:
            self._sessions.append(None)
        else:
            name = conversation.id if conversation.id is not None else conversation.conversation_id
            self._sessions += [str(self._taken if name is None else name)] * made
        self._places += [place] * made
        self._taken += 1

    def _hand_over(self, line_of: Callable[[int], int]) -> None:
        """Puts the requests into the table; `line_of` is the line of the conversation at a place."""
        linked = any(self._sessions)
        rows = Rows(
            lambda: [line_of(place) for place in self._places], np.zeros(len(self._inputs), dtype=np.int64),
            self._inputs, self._outputs, after_ns=[0 if row >= 0 else -1 for row in self._earlier] if linked else None,
            sessions=self._sessions if linked else None, repeats=(self._earlier, self._repeated) if linked else None,
        )  # fmt: skip
        self.table.take(rows)
        for each in (self._places, self._inputs, self._outputs, self._sessions, self._earlier, self._repeated):
            each.clear()


def _problem(value: Any) -> str:
    """What is wrong with a value that is no conversation."""
    turns = value.get("conversations", value.get("conversation")) if isinstance(value, dict) else None
    if not isinstance(turns, list):
        return NO_TURNS
    for index, turn in enumerate(turns):
        turn = turn if isinstance(turn, dict) else {}
        said = (turn.get("from", turn.get("role")), turn.get("value", turn.get("content")))
        if not all(isinstance(each, str) for each in said):
            return TURN.format(index)
    return 'not a conversation: "id" must be a text or an integer'


def estimated(text: str) -> int:
    """Tokens of a text, without a tokenizer."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return max(1, -(-size // BYTES_PER_TOKEN))


def _counter(source: Source) -> tuple[Callable[[str], int], str]:
    path = source.options.tokenizer
    if path is None:
        how = f"are estimates, one token per {BYTES_PER_TOKEN} bytes of text; tokenizer= counts them"
        return estimated, how
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
