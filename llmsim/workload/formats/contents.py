"""What a trace says about the content of its prompts: block ids, or how much of an earlier request a prompt repeats."""

from array import array
from collections.abc import Sequence

import numpy as np

from llmsim.core import Int64, UInt64
from llmsim.workload.handles import chained


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

    def repeat(self, row: int, earlier: int, tokens: int) -> None:
        """The row's prompt begins with that many tokens of an earlier row's prompt and answer (-1: of none)."""
        padding = row - len(self._repeat_row)
        self._repeat_row.extend([-1] * padding + [earlier])
        self._repeat_tokens.extend([0] * padding + [tokens])

    def _fill(self, rows: int) -> None:
        while len(self._ends) < rows:
            self._ends.append(len(self._ids))

    def columns(self, stream_tokens: Int64, block_tokens: int) -> tuple[Int64, UInt64]:
        """Offsets and keys of all rows: handles of the ids; or keys of `block_tokens` tokens of prompt and answer.

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
        """The full blocks of a repeated beginning are the earlier row's, all others new."""
        offsets = np.zeros(len(blocks) + 1, dtype=np.int64)
        np.cumsum(blocks, out=offsets[1:])
        keys = np.arange(1, int(offsets[-1]) + 1, dtype=np.uint64)
        starts = offsets.tolist()
        for row, (earlier, tokens) in enumerate(zip(self._repeat_row, self._repeat_tokens, strict=True)):
            if earlier < 0:
                continue
            held = starts[earlier + 1] - starts[earlier]
            shared = min(tokens // block_tokens, held, starts[row + 1] - starts[row])
            keys[starts[row] : starts[row] + shared] = keys[starts[earlier] : starts[earlier] + shared]
        return offsets, keys


def _number(value: int | str) -> int:
    """An id as 64 bits: large integers are cut, text is hashed."""
    if isinstance(value, str):
        from hashlib import blake2b

        return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little")
    return value & 0xFFFFFFFFFFFFFFFF
