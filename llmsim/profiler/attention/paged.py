"""A paged cache with shuffled pages, as an engine leaves it: where a batch's tokens are; and what a
kernel is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from llmsim.profiler.kernels.work import Work

Batch = Sequence[tuple[int, int]]
"""(new tokens, cached tokens) of each sequence."""
PAGE = 16
"""Tokens of a page of the cache, as vLLM has them."""


def alike(batch: Batch) -> dict[tuple[int, int], list[int]]:
    """Indices of the sequences of equal (new, cached) tokens, which one call can take together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, sizes in enumerate(batch):
        groups.setdefault(sizes, []).append(index)
    return groups


class Paged:
    """Pages, slots and lengths of a batch; what the pages hold is up to the kind of attention."""

    def __init__(self, torch: Any, device: Any, batch: Batch, page: int = PAGE) -> None:
        """`page`: tokens of a page."""
        self.batch, self.page = tuple(batch), page
        self.lengths = [q + k for q, k in batch]
        self.starts = [0, *accumulate(q for q, _ in batch)]
        pages = [-(-length // page) for length in self.lengths]
        self.num_pages = sum(pages)
        order = torch.randperm(self.num_pages, device=device)
        self.table = torch.zeros(len(pages), max(pages), dtype=torch.int32, device=device)
        write = []
        self.slots: list[Any] = []
        """Of every token of a sequence, in their order."""
        for index, (first, count) in enumerate(zip([0, *accumulate(pages)], pages, strict=False)):
            mine = order[first : first + count]
            self.table[index, :count] = mine.to(torch.int32)
            positions = torch.arange(self.lengths[index], device=device)
            slot = mine[positions // page] * page + positions % page
            self.slots.append(slot)
            write.append(slot[self.lengths[index] - self.batch[index][0] :])
        self.read_index, self.write_index = torch.cat(self.slots), torch.cat(write)
        integers = {"dtype": torch.int32, "device": device}
        self.cu_q = torch.tensor(self.starts, **integers)
        self.cu_k = torch.tensor([0, *accumulate(self.lengths)], **integers)
        self.used_k = torch.tensor(self.lengths, **integers)

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return self.starts[-1]


class Part:
    """Neighbouring sequences of a batch, which one call of a kernel gets."""

    def __init__(self, whole: Paged, sequences: slice) -> None:
        first, last = sequences.start, sequences.stop
        self.batch = whole.batch[sequences]
        self.lengths = whole.lengths[sequences]
        self.tokens = slice(whole.starts[first], whole.starts[last])
        self.starts = [start - whole.starts[first] for start in whole.starts[first : last + 1]]
        self.slots = whole.slots[sequences]
        self.table = whole.table[sequences]
        self.cu_q = whole.cu_q[first : last + 1] - whole.cu_q[first]
        self.used_k = whole.used_k[sequences].contiguous()
        self.most_new = max(new for new, _ in self.batch)
        self.longest = max(self.lengths)

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True)
class Kernel:
    """How one implementation is found, called, and prepared once a step."""

    missing: Callable[[Any, Any, Any], str]
    call: Callable[[Any, Any], Work]
    once: Callable[[Any, Any], Work] | None = None
    page: Callable[[], int] = lambda: PAGE


@dataclass(frozen=True)
class Family:
    """The kernels of one kind of attention, best first, the buffers that they work on, and how one
    is found wrong.
    """

    kernels: Mapping[str, Kernel]
    buffers: Callable[..., Any]
    """(torch, device, dtype, shape, batch, page)."""
    error: Callable[[Any, Any, Any], float]
    """Of (torch, buffers, what a kernel returned): the relative error against float32 math."""
    checked: Callable[[Any], Batch]
    """Of a shape: the batch that every kernel must get right."""
