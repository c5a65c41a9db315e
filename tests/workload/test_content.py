"""Content keys: the native hasher against the reference, and the columns that carry them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_hasher import ReferenceHasher

from llmsim.workload.content import content_hasher, reordered

tokens = st.lists(st.integers(0, 2), max_size=14)


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.one_of(st.none(), st.tuples(tokens, st.one_of(st.none(), tokens))), max_size=8),
)
def test_native_ids_equal_the_reference(granularity, requests):
    pytest.importorskip("llmsim._native")
    native, reference = content_hasher(granularity), ReferenceHasher(granularity)
    for request in requests:
        for hasher in (native, reference):
            if request is None:
                hasher.skip()
            else:
                hasher.add(*request)
    assert np.array_equal(native.offsets(), reference.offsets())
    assert np.array_equal(native.keys(), reference.keys())


def test_equal_ids_mean_equal_prefixes():
    hasher = ReferenceHasher(2)
    hasher.add([1, 2, 3, 4], [5])
    hasher.add([1, 2], [3, 4, 9, 9])  # where the prompt ends does not matter
    hasher.add([9, 9, 3, 4])  # the second block is equal, the prefix is not
    assert hasher.keys().tolist() == [1, 2, 1, 2, 3, 4, 5]
    assert hasher.offsets().tolist() == [0, 2, 5, 7]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), st.randoms())
def test_reordered_keeps_every_list(lists, random):
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    keys = np.array([key for one in lists for key in one], dtype=np.uint64)
    rows = list(range(len(lists)))
    random.shuffle(rows)
    new_offsets, new_keys = reordered(offsets, keys, np.array(rows, dtype=np.int64))
    found = [new_keys[new_offsets[i] : new_offsets[i + 1]].tolist() for i in range(len(rows))]
    assert found == [lists[row] for row in rows]
