"""What a trace says about the content of its prompts: block ids, or how much of an earlier request
a prompt repeats.
"""

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64, UInt64
from llmsim.workload.block_content_ids import chained


class Contents:
    """Grows row by row, rows without content left out; compact while ids fit 32 bits."""

    def __init__(self) -> None:
        self._ids: array[int] = array("I")
        self._named = False
        self._ends = array("q")
        self._repeat_row, self._repeat_tokens = array("q"), array("q")

    @property
    def has_handles(self) -> bool:
        """Whether `columns` gives the file's own block ids."""
        return self._named

    @property
    def repeats(self) -> bool:
        """Whether some row's prompt is said to begin with another's."""
        return len(self._repeat_row) > 0

    def name(self, row: int, ids: Sequence[int | str]) -> None:
        """The block ids of a row, which comes after those named before."""
        self._fill(row)
        try:
            self._ids.extend(ids)  # type: ignore[arg-type]  # other ids are caught
        except (OverflowError, TypeError):
            del self._ids[self._ends[-1] if self._ends else 0 :]
            self._ids = array("Q", self._ids)
            self._ids.extend(_number(value) for value in ids)
        self._ends.append(len(self._ids))
        self._named = self._named or len(self._ids) > 0

    def name_all(self, first: int, ids: Sequence[Sequence[int | str] | None]) -> None:
        """The block ids of rows from `first` on; None where a row names nothing."""
        self._fill(first)
        before = len(self._ids)
        counts = [len(each) if each else 0 for each in ids]
        try:
            self._ids.extend(chain.from_iterable(each for each in ids if each))  # type: ignore[misc]
        except (OverflowError, TypeError):
            del self._ids[before:]
            for row, each in enumerate(ids, first):
                self.name(row, each or ())
            return
        self._ends.frombytes((before + np.cumsum(counts, dtype=np.int64)).tobytes())
        self._named = self._named or len(self._ids) > 0

    def name_flat(self, first: int, counts: Int64, ids: NDArray[np.integer]) -> None:
        """The block ids of rows from `first` on, `counts` for each; ids below 0 count as what their
        64 bits say.
        """
        self._fill(first)
        before = len(self._ids)
        wide = ids.astype(np.uint64)
        if self._ids.itemsize < 8 and len(wide) and int(wide.max()) >= 1 << 32:
            self._ids = array("Q", self._ids)
        self._ids.frombytes(wide.astype(f"u{self._ids.itemsize}").tobytes())
        self._ends.frombytes((before + np.cumsum(counts, dtype=np.int64)).tobytes())
        self._named = self._named or len(self._ids) > 0

    def repeat(self, row: int, earlier: int, tokens: int) -> None:
        """The row's prompt begins with that many tokens of an earlier row's prompt and answer (-1:
        of none).
        """
        padding = row - len(self._repeat_row)
        self._repeat_row.extend([-1] * padding + [earlier])
        self._repeat_tokens.extend([0] * padding + [tokens])

    def repeat_all(self, first: int, earlier: Int64, tokens: Int64) -> None:
        """`repeat` for rows from `first` on."""
        padding = first - len(self._repeat_row)
        self._repeat_row.extend([-1] * padding)
        self._repeat_row.frombytes(earlier.tobytes())
        self._repeat_tokens.extend([0] * padding)
        self._repeat_tokens.frombytes(tokens.tobytes())

    def _fill(self, rows: int) -> None:
        while len(self._ends) < rows:
            self._ends.append(len(self._ids))

    def columns(self, stream_tokens: Int64, block_tokens: int) -> tuple[Int64, UInt64]:
        """Offsets and keys of all rows: handles of the ids; or keys of `block_tokens` tokens of
        prompt and answer.

        May be called once: it lets go of what it read.
        """
        n = len(stream_tokens)
        if self._repeat_row and block_tokens:
            return self._repeated(stream_tokens // block_tokens, block_tokens)
        offsets = np.zeros(n + 1, dtype=np.int64)
        if not self.has_handles:
            return offsets, np.zeros(0, dtype=np.uint64)
        self._fill(n)
        offsets[1:] = np.frombuffer(self._ends, dtype=np.int64)
        self._ends = array("q")
        handles = chained(np.frombuffer(self._ids, dtype=f"u{self._ids.itemsize}"), offsets)
        self._ids = array("I")
        return offsets, handles

    def _repeated(self, blocks: Int64, block_tokens: int) -> tuple[Int64, UInt64]:
        """The full blocks of a repeated beginning are the earlier row's, all others new.

        Every block points to the one it repeats, or to itself, and pointers to pointers are
        shortened until all of them are ends.
        """
        offsets = np.zeros(len(blocks) + 1, dtype=np.int64)
        np.cumsum(blocks, out=offsets[1:])
        repeating = np.flatnonzero(np.frombuffer(self._repeat_row, dtype=np.int64) >= 0)
        earlier = np.frombuffer(self._repeat_row, dtype=np.int64)[repeating]
        shared = np.frombuffer(self._repeat_tokens, dtype=np.int64)[repeating] // block_tokens
        shared = np.minimum(np.minimum(shared, blocks[earlier]), blocks[repeating])
        origin = np.arange(int(offsets[-1]), dtype=np.uint64)
        within = np.arange(int(shared.sum()), dtype=np.int64) - np.repeat(
            np.cumsum(shared) - shared, shared
        )
        pointing = np.repeat(offsets[repeating], shared) + within
        target = np.repeat(offsets[earlier], shared) + within
        del within
        while len(pointing):
            origin[pointing] = target
            target = origin[target].astype(np.int64)
            moved = target != origin[pointing].astype(np.int64)
            pointing, target = pointing[moved], target[moved]
        origin += np.uint64(1)
        return offsets, origin


def _number(value: int | str) -> int:
    """An id as 64 bits: large integers are cut, text is hashed."""
    if isinstance(value, str):
        from hashlib import blake2b

        return int.from_bytes(
            blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
        )
    return value & 0xFFFFFFFFFFFFFFFF
