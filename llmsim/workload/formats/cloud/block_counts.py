"""Compares how many block ids a trace's rows have with how many blocks their prompts have.

The published traces of Mooncake and Bailian have an id for every block, the last of which may be
partial. Fewer ids leave the end of a prompt unnamed. More ids than blocks contradict the block
size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmsim.core import Note
from llmsim.workload.formats.table import Table

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Block sizes that a trace may have meant: those of engines and of published traces."""


class BlockCounts:
    """Looks at the rows of a trace whose ids name blocks of `block_tokens`."""

    def __init__(self, table: Table, block_tokens: int) -> None:
        self._table, self._block = table, block_tokens
        self._fitting = [size for size in SIZES if size != block_tokens]
        self._beyond = 0
        self._first = ""
        self._first_line = 0
        self._alone: tuple[list[int], list[int], list[int]] = ([], [], [])

    def see(
        self,
        numbers: Callable[[], Sequence[int]],
        lengths: Sequence[int],
        ids: Sequence[Sequence[Any] | None],
    ) -> None:
        """Looks at rows by their prompts' tokens and their ids; `numbers` are their lines."""
        counts = np.fromiter((len(each) if each else 0 for each in ids), np.int64, len(ids))
        self._compare(numbers, np.array(lengths, dtype=np.int64), counts)

    def see_one(self, number: int, length: int, ids: Sequence[Any] | None) -> None:
        """Looks at one row."""
        if ids:
            for column, value in zip(self._alone, (number, length, len(ids)), strict=True):
                column.append(value)

    def _compare(self, numbers: Callable[[], Sequence[int]], lengths: Any, counts: Any) -> None:
        named = np.flatnonzero((counts > 0) & (lengths > 0))
        lengths, counts = lengths[named], counts[named]
        beyond = np.flatnonzero(counts > -(-lengths // self._block))
        self._fitting = [
            size
            for size in self._fitting
            if np.all((counts == -(-lengths // size)) | (counts == lengths // size))
        ]
        self._beyond += len(beyond)
        if len(beyond) and not self._first:
            row = int(beyond[0])
            self._first_line = numbers()[int(named[row])]
            length, count = int(lengths[row]), int(counts[row])
            blocks = -(-length // self._block)
            self._first = (
                f"has {count} hash_ids, but a prompt of {length} tokens has {blocks} "
                f"block{'s' if blocks > 1 else ''} of {self._block}"
            )

    def close(self) -> None:
        """Refuses a trace all of whose rows have the ids of another block size; notes one with some
        ids too many. InputError has the first such line.
        """
        numbers, lengths, counts = self._alone
        if numbers:
            self._compare(lambda: numbers, np.array(lengths), np.array(counts))
        if not self._beyond:
            return
        source = self._table.source
        if self._fitting and source.options.block is None:
            size = self._fitting[0]
            raise self._table.refusal(
                self._first_line,
                f"{self._first}; every line fits blocks of {size}, which block={size} says",
            )
        other = f", or block={self._fitting[0]} if that is meant" if self._fitting else ""
        sentence = (
            f"{source.path}:{self._first_line}: {self._first}; {self._beyond} such lines, whose "
            f"last ids are not used{other}; block= names the block size"
        )
        self._table.notes.append(Note(sentence))
