"""Room for copied weights: the most that neighbouring places need, around the end of a step."""

import pytest

from llmsim.lowering.offload.weight_streaming import _buffers


@pytest.mark.parametrize(
    ("sizes", "depth", "expected"),
    [
        ([], 2, 0),
        ([5], 1, 5),
        ([5], 4, 5),
        ([1, 2, 4, 8], 1, 8),
        ([1, 2, 4, 8], 2, 12),
        ([9, 1, 1, 8], 2, 17),  # the last and the first of the next step
        ([9, 7, 1, 8], 3, 24),
        ([9, 7, 1, 8], 4, 25),
        ([9, 7, 1, 8], 9, 25),
    ],
)
def test_so_many_places_in_a_row_are_copied_at_once(
    sizes: list[int], depth: int, expected: int
) -> None:
    assert _buffers({7 * number: size for number, size in enumerate(sizes)}, depth) == expected
