"""Attention costs are one of two classes; a plug-in's older way still works, with a warning."""

import numpy as np
import pytest

from llmsim.costs import AttentionCost, MixedAttention, MixedGrid, SplitAttention, SplitGrid

AXIS = np.array([0, 1], dtype=np.int64)
CELLS, MARKS = np.ones((2, 2), dtype=np.int64), np.zeros((2, 2), dtype=np.uint8)
SPLIT = SplitGrid(AXIS, AXIS, CELLS, MARKS, AXIS, AXIS, CELLS, MARKS, 0)
MIXED = MixedGrid(AXIS, AXIS, AXIS, AXIS, np.ones((2,) * 4), np.zeros((2,) * 4, dtype=np.uint8))


def test_the_older_way_makes_the_kind_of_its_grid_and_warns() -> None:
    with pytest.warns(FutureWarning, match="AttentionCost is made as MixedAttention"):
        split = AttentionCost(2, None, SPLIT, 7, "s", "k", window=16)
    assert isinstance(split, SplitAttention) and split.grid is SPLIT and split.window == 16
    with pytest.warns(FutureWarning, match="AttentionCost is made as"):
        mixed = AttentionCost(2, MIXED, None, 7, "s", "k", prompts_apart=True)
    assert isinstance(mixed, MixedAttention) and mixed.grid is MIXED and mixed.prompts_apart
    with pytest.warns(FutureWarning), pytest.raises(TypeError, match="give mixed or split"):
        AttentionCost(2, None, None, 7, "s", "k")


def test_the_older_fields_are_read_with_a_warning() -> None:
    cost = SplitAttention(
        repeat=1, grid=SPLIT, skew_ps_per_token_q20=0, source="s", skew_source="k"
    )
    with pytest.warns(FutureWarning, match="AttentionCost.split is now the grid of SplitAttention"):
        assert cost.split is SPLIT  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning, match="grid of MixedAttention"):
        assert cost.mixed is None  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="SplitAttention has no attribute hue"):
        cost.hue  # type: ignore[attr-defined]  # noqa: B018
