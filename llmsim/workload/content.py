"""Names the content of a request's token blocks, so that equal prefixes are found without keeping
tokens.
"""

import importlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol, cast

import numpy as np

from llmsim.core import EncoderInput, Int32, Int64, UInt64


class ContentHasher(Protocol):
    """Collects one entry per request, in order: `add` or `skip`, then reads `offsets` and `keys`
    once at the end.

    A request's stream is its prompt followed by its answer. Block b of `granularity` tokens gets a
    128-bit hash of all tokens up to its end, interned to a dense id from 1 in order of first
    appearance: equal ids mean equal tokens and an equal prefix. A partial last block gets no id.
    """

    def add(self, input_ids: list[int], output_ids: list[int] | None) -> None:
        """Appends a request whose tokens are known."""

    def skip(self) -> None:
        """Appends a request without tokens: it shares nothing."""

    def offsets(self) -> Int64:
        """Shape (requests + 1,): where each request's ids start in `keys`."""

    def keys(self) -> UInt64:
        """All ids, request after request."""


def content_hasher(granularity: int) -> ContentHasher:
    """A hasher for blocks of `granularity` tokens (>= 1)."""
    native = importlib.import_module("llmsim._native")
    return cast(ContentHasher, native.ContentHasher(granularity))


def adapter_numbers(adapters: Sequence[str]) -> Int32:
    """Shape (requests,): a number from 1 for each LoRA adapter in order of appearance; 0 for ""."""
    numbers = {name: place for place, name in enumerate(dict.fromkeys(("", *adapters)))}
    return np.array([numbers[name] for name in adapters], np.int32)


def numbered_inputs(rows: list[tuple[EncoderInput, ...]]) -> Iterator[tuple[int, int, int]]:
    """First token, tokens and a number of the content of each input, row after row.

    Equal names of as many tokens have the same number; an input without a name has its own.
    """
    numbers: dict[tuple[str, int], int] = {}
    for row, inputs in enumerate(rows):
        for place, (offset, tokens, name) in enumerate(inputs):
            key = (name, tokens) if name else (f"\0{row} {place}", tokens)
            yield offset, tokens, numbers.setdefault(key, len(numbers))


def reordered(offsets: Int64, keys: UInt64, rows: Int64) -> tuple[Int64, UInt64]:
    """The ids of `rows`, in that order; shapes as for `offsets` and `keys`."""
    counts = np.diff(offsets)[rows]
    new_offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=new_offsets[1:])
    moved = np.empty(int(new_offsets[-1]), dtype=keys.dtype)
    shift = offsets[:-1][rows] - new_offsets[:-1]
    for first, last in chunks_of_rows(new_offsets):
        low, high = int(new_offsets[first]), int(new_offsets[last])
        moved[low:high] = keys[
            np.repeat(shift[first:last], counts[first:last]) + np.arange(low, high)
        ]
    return new_offsets, moved


def chunks_of_rows(offsets: Int64) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of runs of rows with about a million entries each, or one row that has
    more.
    """
    starts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), 1 << 20), side="right") - 1
    return pairwise(dict.fromkeys([*starts.tolist(), len(offsets) - 1]))
