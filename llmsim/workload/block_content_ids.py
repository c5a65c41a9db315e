"""Content handles: the block ids that traces carry at their own block size, and the keys an
engine's blocks get from them.

A *handle* is an id (>= 1) of one block of `block_tokens` tokens and of everything before it: equal
handles mean equal prefixes. A Workload whose `granularity` is the file's block size holds handles
as its keys, where the last handle of a request may cover a block that its prompt fills only in
part.
"""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.config.errors import InfeasibleError
from llmsim.core import Int64, UInt64, Workload
from llmsim.workload.content import chunks_of_rows

MAX_KEYS = 1 << 29
"""Keys one workload may have (4 GiB of them)."""


def chained(ids: NDArray[np.unsignedinteger], offsets: Int64) -> UInt64:
    """Handles of the ids that requests list: request i has ids[offsets[i]:offsets[i+1]].

    Small ids that always follow the same id name whole prefixes, as those of published traces do,
    and are handles as they stand (from 1). Otherwise an id is the name of a block's own tokens, and
    a handle is a 63-bit hash of all ids up to it; any two of D different prefixes share one with
    probability below D^2 / 2^64.
    """
    if len(ids) == 0 or int(ids.max()) > 4 * len(ids) + 1000:
        return _prefix_hashes(ids, offsets)
    nobody = int(ids.max()) + 1
    follows = np.zeros(nobody, dtype=np.int32 if nobody < 1 << 31 else np.int64)
    for mine, before in _predecessors(ids, offsets, nobody):
        follows[mine] = before
    names_prefixes = all(
        np.array_equal(follows[mine], before)
        for mine, before in _predecessors(ids, offsets, nobody)
    )
    del follows
    if names_prefixes:
        handles = ids.astype(np.uint64)
        handles += np.uint64(1)
        return handles
    return _prefix_hashes(ids, offsets)


def _predecessors(
    ids: NDArray[np.unsignedinteger], offsets: Int64, nobody: int
) -> Iterator[tuple[NDArray[np.unsignedinteger], Int64]]:
    """Piece by piece, for the memory: ids and the one before each in its request, `nobody` before a
    request's first.
    """
    for first, last in chunks_of_rows(offsets):
        low, high = int(offsets[first]), int(offsets[last])
        before = np.empty(high - low, dtype=np.int64)
        before[1:] = ids[low : high - 1]
        rows = offsets[first : last + 1]
        before[rows[:-1][np.diff(rows) > 0] - low] = nobody
        yield ids[low:high], before


def _prefix_hashes(ids: NDArray[np.unsignedinteger], offsets: Int64) -> UInt64:
    """For every id a hash of the ids of its request up to it, in order: mixed values are summed,
    each mixed with its index, so that one running sum serves all requests of a chunk.
    """
    made = np.empty(len(ids), dtype=np.uint64)
    for first, last in chunks_of_rows(offsets):
        low, high = int(offsets[first]), int(offsets[last])
        starts = offsets[first:last] - low
        counts = np.diff(offsets[first : last + 1])
        block_index = (np.arange(high - low) - np.repeat(starts, counts)).astype(np.uint64)
        sums = np.concatenate(
            (
                np.zeros(1, dtype=np.uint64),
                _mixed(_mixed(ids[low:high].astype(np.uint64)) + block_index),
            )
        )
        np.cumsum(sums, out=sums)
        made[low:high] = _mixed(
            sums[1:] - np.repeat(sums[starts], counts) + block_index
        ) >> np.uint64(1)
    return made


def _mixed(values: UInt64) -> UInt64:
    """SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def with_granularity(workload: Workload, granularity: int) -> Workload:
    """The same workload with keys for blocks of `granularity` tokens (0: none), derived from its
    handles.

    The block that ends at token t of a request gets its key from the handle whose block token t is
    in, and from t's index there: two requests share it exactly when they share that handle. A
    prefix that ends inside a handle's block is lost, as it is in the trace. Prompts only: a trace
    of handles does not name its answers. Raises InfeasibleError where the keys would take more than
    `MAX_KEYS`.
    """
    if granularity == 0 or len(workload.keys) == 0:
        offsets = np.zeros(len(workload) + 1, dtype=np.int64)
        return replace(
            workload,
            granularity=granularity,
            key_offsets=offsets,
            keys=np.zeros(0, dtype=np.uint64),
        )
    block = workload.granularity
    handles = np.diff(workload.key_offsets)
    covered = np.minimum(workload.input_tokens.astype(np.int64), handles * block)
    offsets = np.zeros(len(workload) + 1, dtype=np.int64)
    np.cumsum(covered // granularity, out=offsets[1:])
    if offsets[-1] > MAX_KEYS:
        raise InfeasibleError(
            f"{workload.source}: naming the content of its prompts in blocks of {granularity} "
            f"tokens takes {int(offsets[-1]):,} keys, but {MAX_KEYS:,} are possible; use fewer "
            "requests, or larger KV blocks"
        )
    keys = np.empty(int(offsets[-1]), dtype=np.uint64)
    for first, last in chunks_of_rows(offsets):
        _derive(workload, granularity, offsets, keys, first, last)
    return replace(workload, granularity=granularity, key_offsets=offsets, keys=keys)


def _derive(
    workload: Workload, granularity: int, offsets: Int64, keys: UInt64, first: int, last: int
) -> None:
    """Fills the keys of rows first .. last - 1."""
    block = workload.granularity
    counts = np.diff(offsets[first : last + 1])
    ends = np.arange(1, int(counts.sum()) + 1) - np.repeat(
        offsets[first:last] - offsets[first], counts
    )
    ends *= granularity
    handle = (ends - 1) // block
    of_handle = workload.keys[np.repeat(workload.key_offsets[first:last], counts) + handle]
    most = np.uint64(-(-block // granularity))
    block_index = ((ends - handle * block - 1) // granularity).astype(np.uint64)
    if int(workload.keys.max()) < (1 << 63) // int(most) - 1:
        derived = of_handle * most + block_index
    else:  # hashes: one more
        derived = _mixed(of_handle ^ _mixed(block_index)) >> np.uint64(1)
    keys[offsets[first] : offsets[last]] = derived


def coarser(workload: Workload, block_tokens: int) -> list[list[int]]:
    """Per request one id (from 0) for each block of `block_tokens` tokens of its prompt, the last
    maybe partial; equal ids mean equal prefixes as far as the workload knows them. `block_tokens`
    must be a multiple of its granularity.
    """
    granularity = max(workload.granularity, 1)
    known: dict[tuple[int, int], int] = {}
    made: list[list[int]] = []
    total = 0
    for row, tokens in enumerate(workload.input_tokens.tolist()):
        low, high = workload.key_offsets[row : row + 2].tolist()
        held = workload.keys[low:high].tolist()
        mine = []
        for block_index, begin in enumerate(range(0, tokens, block_tokens)):
            filled = min(block_tokens, tokens - begin)
            if block_tokens == granularity:
                index, name = block_index, 0
            # a partial block has a name only where its last token ends a block of the workload
            else:
                index, name = (begin + filled) // granularity - 1, filled
                index = index if filled % granularity == 0 else len(held)
            number = known.setdefault((held[index], name), total) if index < len(held) else total
            total += number == total
            mine.append(number)
        made.append(mine)
    return made


def repeated_prompt_tokens(workload: Workload) -> int:
    """Prompt tokens that a cache which forgets nothing would find, were requests served one after
    the other in the workload's order: those of blocks whose key an earlier request has, as prompt
    or as answer.
    """
    keys = workload.keys
    if len(keys) == 0:
        return 0
    repeated = _seen_before(keys)
    found = 0
    for low, high in chunks_of_rows(workload.key_offsets):
        offsets = workload.key_offsets[low : high + 1]
        counts = np.diff(offsets)
        block_index = np.arange(offsets[0], offsets[-1]) - np.repeat(offsets[:-1], counts)
        left = (
            np.repeat(workload.input_tokens[low:high].astype(np.int64), counts)
            - block_index * workload.granularity
        )
        found += int(
            np.clip(left, 0, workload.granularity)[repeated[offsets[0] : offsets[-1]]].sum()
        )
    return found


def _seen_before(keys: UInt64) -> NDArray[np.bool_]:
    """For every key, whether it is there earlier."""
    size = int(keys.max()) + 1
    repeated = np.ones(len(keys), dtype=bool)
    if size > 8 * len(keys) + 1000:
        bits = np.empty(len(keys), dtype=np.uint8)
        np.bitwise_and(keys, np.uint64(7), out=bits, casting="unsafe")
        for part in range(8):  # one after the other, for the memory
            rows = np.flatnonzero(bits == part)
            _, first = np.unique(keys[rows], return_index=True)
            repeated[rows[first]] = False
        return repeated
    seen = np.zeros(size, dtype=bool)
    for low in range(0, len(keys), 1 << 18):
        piece = keys[low : low + (1 << 18)]
        new = np.flatnonzero(~seen[piece])
        _, first = np.unique(piece[new], return_index=True)
        repeated[low + new[first]] = False
        seen[piece] = True
    return repeated
