"""Conversations of ShareGPT, LMSYS-Chat-1M, WildChat or OpenAI's `messages` (JSON or Parquet): each
exchange is a request whose prompt repeats the conversation so far.

There are no arrival times: all conversations begin at 0 unless `rate` spreads them. Without a
tokenizer a text of B bytes of UTF-8 counts as ceil(B / 4) tokens, and at least 1: English is near 4
bytes per token in current vocabularies, other scripts scatter around it. With one
(`tokenizer=tokenizer.json`, package `tokenizers`) the lengths are exact for the texts alone; no
chat template is added in either case.
"""

import importlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64
from llmsim.workload.formats.batches import Batch
from llmsim.workload.formats.documents import HALF, json_documents
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.parquet import stored_batches
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import Table

BYTES_PER_TOKEN = 4
ASKING, ANSWERING = ("human", "user", "system"), ("gpt", "assistant", "chatgpt", "bing", "bard")
SAID = ("conversations", "conversation", "messages")
NO_TURNS = 'not a conversation: "conversations" must be a list of turns'
TURN = '"conversations[{}]" needs "from" and "value", both texts'
ASKS, ANSWERS = 1, 2
_ROLES = {**dict.fromkeys(ASKING, ASKS), **dict.fromkeys(ANSWERING, ANSWERS)}


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
    conversation_hash: str | None = None
    messages: list[Turn] | None = None

    @property
    def turns(self) -> list[Turn] | None:
        """What was said, whichever key has it."""
        for turns in (self.conversations, self.conversation, self.messages):
            if turns is not None:
                return turns
        return None


def detect(head: Head) -> bool:
    if head.kind == "parquet":
        return any(name in head.columns for name in SAID)
    if head.first is None and head.has("custom_id", "method", "url", "body"):
        return False  # a batch file of OpenAI's, whose first line is longer than the head
    said = head.has("conversations") or head.has("conversation")
    timed = (
        "input_length",
        "output_length",
        "timestamp",
        "delay",
    )  # the `messages` of Mooncake's extended rows
    if head.has("messages") and not any(head.has(name) for name in timed):
        said = True
    return head.kind in ("array", "lines", "object") and said


def read(source: Source, head: Head) -> Table:
    reader = _Reader(source)
    for batch in (
        _stored(source, head)
        if head.kind == "parquet"
        else json_documents(source.path, Conversation)
    ):
        if isinstance(batch, Batch):
            reader.take_all(batch)
        else:
            reader.take_value(*batch)
        if reader.full:
            break
    table = reader.table
    if not len(table):
        asked = any(head.has(name) for name in ("max_tokens", "max_completion_tokens"))
        instead = "; format=openai takes lines with max_tokens as requests" if asked else ""
        raise InputError(
            f"{source.path}: none of the conversations has an answer to a question{instead}"
        )
    note_counts(table, "token counts", reader.how)
    if source.options.rate is None:
        table.say("conversations have no times and all begin at 0; rate= spreads them")
    return table


class _Exchanges(Struct, frozen=True):
    """Requests of conversations, in order: whose each is, its question's and its
    answer's tokens.
    """

    conversation: Int64
    questions: Int64
    answers: Int64

    def firsts(self) -> NDArray[np.bool_]:
        """Whether a request is its conversation's first."""
        starts: NDArray[np.bool_] = np.diff(self.conversation, prepend=-1) != 0
        return starts

    def only(self, kept: NDArray[np.bool_]) -> "_Exchanges":
        return _Exchanges(self.conversation[kept], self.questions[kept], self.answers[kept])


def _stored(source: Source, head: Head) -> Iterator[tuple[int, int, Any]]:
    """(row, 1, conversation) of a Parquet file, as LMSYS-Chat-1M and WildChat are published."""
    names = [
        name
        for name in (*SAID, "id", "conversation_id", "conversation_hash")
        if name in head.columns
    ]
    values = chain.from_iterable(
        batch.to_pylist() for batch in stored_batches(source.path, "parquet", names)
    )
    for number, value in enumerate(values, 1):
        yield number, 1, value


class _Reader:
    """Takes conversations, and numbers them: those without a name are called by their number."""

    def __init__(self, source: Source) -> None:
        self.table = Table(source)
        self._options = source.options
        self._count, self.how = counter(source)
        self._taken = 0

    @property
    def full(self) -> bool:
        """Whether the conversations that `limit` asks for are there."""
        return 0 < self._options.limit <= self._taken and not self._options.changes_workload

    def take_all(self, batch: Batch[Conversation]) -> None:
        """The conversations of a batch, as far as they are wanted."""
        self._take(batch.records, batch.position)

    def take_value(self, line: int, column: int, value: Any) -> None:
        """One conversation, as Python's json reads it."""
        try:
            conversation = msgspec.convert(value, Conversation)
        except msgspec.ValidationError:
            raise self.table.refusal(line, _problem(value), column) from None
        except UnicodeEncodeError:
            raise self.table.refusal(line, f"not a conversation: {HALF}", column) from None
        self._take([conversation], lambda _: (line, column))

    def _take(
        self, conversations: list[Conversation], position: Callable[[int], tuple[int, int]]
    ) -> None:
        """Makes requests of conversations: all that was said since the last answer, and the answer;
        each prompt repeats what was said before. `position` says where a conversation stands in the
        file.
        """
        limited = self._options.limit > 0 and not self._options.changes_workload
        lists = []
        for index, conversation in enumerate(conversations):
            turns = conversation.turns
            if turns is None:
                line, column = position(index)
                raise self.table.refusal(line, NO_TURNS, column)
            lists.append(turns)
        exchanges = self._exchanges(lists, position)
        if self._options.turns == "first":
            exchanges = exchanges.only(exchanges.firsts())
        if limited:
            exchanges = exchanges.only(
                np.cumsum(exchanges.firsts()) <= self._options.limit - self._taken
            )
        self._hand_over(exchanges, conversations, position)

    def _exchanges(
        self, lists: list[list[Turn]], position: Callable[[int], tuple[int, int]]
    ) -> _Exchanges:
        """What was asked and answered; a turn of neither side counts for nothing."""
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        of = np.repeat(np.arange(len(lists)), lengths)
        speakers, texts = self._said(list(chain.from_iterable(lists)), of, position)
        role, sizes = _roles(speakers), _sizes(texts)
        asks = role == ASKS
        answered = np.flatnonzero(role == ANSWERS)
        # Of the conversation, or behind the answer before.
        begins = np.searchsorted(of, of[answered])
        begins[1:] = np.maximum(begins[1:], answered[:-1] + 1)
        asked_before = np.concatenate(
            (np.zeros(1, dtype=np.int64), np.cumsum(np.where(asks, sizes, 0)))
        )
        asked_sizes = asked_before[answered] - asked_before[begins]
        whole = (asked_sizes > 0) & (sizes[answered] > 0)
        answered, begins, asked_sizes = answered[whole], begins[whole], asked_sizes[whole]
        if self._count is None:
            return _Exchanges(of[answered], _estimated(asked_sizes), _estimated(sizes[answered]))
        questions = _questions(texts, asks, begins, answered)
        answers = [texts[row] for row in answered]
        counted = [[self._count(text) for text in side] for side in (questions, answers)]
        return _Exchanges(of[answered], *(np.array(each, dtype=np.int64) for each in counted))

    def _said(
        self, turns: list[Turn], of: Int64, position: Callable[[int], tuple[int, int]]
    ) -> tuple[list[str], list[str]]:
        """Who spoke in each turn, and what; `of` is each turn's conversation. Raises InputError for
        a turn without one of the two.
        """
        speakers = [turn.who if turn.who is not None else turn.role for turn in turns]
        texts = [turn.said if turn.said is not None else turn.content for turn in turns]
        if None in speakers or None in texts:  # two passes of C, unlike a look at each turn
            row = min(column.index(None) for column in (speakers, texts) if None in column)
            line, column = position(int(of[row]))
            in_conversation = row - int(np.searchsorted(of, of[row]))
            raise self.table.refusal(line, TURN.format(in_conversation), column)
        return cast(list[str], speakers), cast(list[str], texts)

    def _hand_over(
        self,
        made: _Exchanges,
        conversations: list[Conversation],
        position: Callable[[int], tuple[int, int]],
    ) -> None:
        """Puts the requests into the table; of several of one conversation the session
        is its name.
        """
        first, firsts, n = len(self.table), made.firsts(), len(made.conversation)
        heads = np.flatnonzero(firsts)
        of = np.cumsum(firsts) - 1
        grown = np.cumsum(made.questions + made.answers)
        history = (grown - made.questions - made.answers) - (grown - made.questions - made.answers)[
            heads
        ][of]
        columns = (np.zeros(n, dtype=np.int64), history + made.questions, made.answers)
        numbers = lambda: [position(index)[0] for index in made.conversation.tolist()]  # noqa: E731
        if len(heads) == n:
            self.table.take(Rows(numbers, *columns))
        else:
            several = np.diff(heads, append=n) > 1
            named = [conversations[index] for index in made.conversation[heads][several].tolist()]
            numbered = (self._taken + np.flatnonzero(several)).tolist()
            names = [_name(*each) for each in zip(named, numbered, strict=True)]
            session = np.where(several, np.cumsum(several) - 1, -1)[of]
            earlier = np.where(firsts, -1, first + np.arange(n) - 1)
            after_ns = np.where(firsts, -1, 0)
            rows = Rows(
                numbers,
                *columns,
                after_ns=after_ns,
                sessions=Texts(session, names),
                repeats=(earlier, history),
            )
            self.table.take(rows)
        self._taken += len(heads)


def _roles(speakers: list[str]) -> NDArray[np.int64]:
    """Whether each asks, answers, or does neither."""
    known = {
        name: _ROLES.get(name, _ROLES.get(name.lower(), 0)) for name in dict.fromkeys(speakers)
    }
    return np.fromiter(map(known.__getitem__, speakers), dtype=np.int64, count=len(speakers))


def _questions(
    texts: list[str], asks: NDArray[np.bool_], begins: Int64, answered: Int64
) -> list[str]:
    """For each answered turn, all that was asked since the answer before."""
    questions = []
    for low, high in zip(begins.tolist(), answered.tolist(), strict=True):
        rows = low + np.flatnonzero(asks[low:high])
        questions.append("".join(texts[row] for row in rows))
    return questions


def _name(conversation: Conversation, number: int) -> str:
    for name in (conversation.id, conversation.conversation_id, conversation.conversation_hash):
        if name is not None:
            return str(name)
    return str(number)


def _problem(value: Any) -> str:
    """What is wrong with a value that is no conversation."""
    turns = (
        next((value[name] for name in SAID if value.get(name) is not None), None)
        if isinstance(value, dict)
        else None
    )
    if not isinstance(turns, list):
        return NO_TURNS
    for index, turn in enumerate(turns):
        turn = turn if isinstance(turn, dict) else {}
        said = (turn.get("from", turn.get("role")), turn.get("value", turn.get("content")))
        if not all(isinstance(each, str) for each in said):
            return TURN.format(index)
    return 'not a conversation: "id" must be a text or an integer'


def _sizes(texts: list[str]) -> Int64:
    """Bytes of texts in UTF-8."""
    sizes = [
        len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        for text in texts
    ]
    return np.array(sizes, dtype=np.int64)


def _estimated(sizes: Int64) -> Int64:
    """Tokens of texts of so many bytes, without a tokenizer."""
    return np.maximum(-(-sizes // BYTES_PER_TOKEN), 1)


def note_counts(table: Table, what: str, how: str) -> None:
    """Notes how tokens were counted, in every run where that is an estimate."""
    if table.source.options.tokenizer is None:
        table.say(f"{what} {how}")
    else:
        table.notes.append(f"{table.source.path}: {what} {how}")


def counter(source: Source) -> tuple[Callable[[str], int] | None, str]:
    """How many tokens a text has, None where that is estimated; and how that is said."""
    path = source.options.tokenizer
    if path is None:
        how = (
            f"are estimates, one token per {BYTES_PER_TOKEN} bytes of text; tokenizer= counts them"
        )
        return None, how
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise InputError(
            f'tokenizer "{path}" needs the package tokenizers (pip install tokenizers), or '
            "lengths are estimated"
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise InputError(
            f'tokenizer "{path}" cannot be read ({error}); name a tokenizer.json'
        ) from None

    def count(text: str) -> int:
        sound = text.encode(
            "utf-8", "replace"
        ).decode()  # the package refuses halves of surrogate pairs
        return max(1, len(tokenizer.encode(sound, add_special_tokens=False).ids))

    return count, f"are those of {path}"
