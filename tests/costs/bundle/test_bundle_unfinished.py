"""Profiles that were stopped before their mixed batches: decodes beside a prefill are not free."""

from pathlib import Path

import numpy as np
import pytest

from llmsim.costs.source import MixedGrid
from llmsim.costs.sources.bundle.attention import complete_grid, read_attention
from tests.costs.builders import attention_rows, write_csv

HEADER = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
Row = tuple[float, ...]


def rows_of(*, up_to_chunk: int) -> list[Row]:
    """All pure rows, and mixed ones of chunks up to one."""
    rows = [tuple(float(str(cell)) for cell in row) for row in attention_rows()]
    return [row for row in rows if row[0] == 0 or row[2] == 0 or row[0] <= up_to_chunk]


def grid_of(folder: Path, rows: list[Row]) -> MixedGrid:
    write_csv(
        folder / "attention.csv",
        HEADER,
        [(*(int(cell) for cell in row[:4]), row[4]) for row in rows],
    )
    return complete_grid(read_attention(folder / "attention.csv"))


def us(grid: MixedGrid, chunk: int, before: int, n: int, kv: int) -> float:
    axes = (grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis)
    place = tuple(
        int(np.searchsorted(axis, value))
        for axis, value in zip(axes, (chunk, before, n, kv), strict=True)
    )
    return float(grid.ps[place]) / 1e6


@pytest.mark.parametrize("up_to_chunk", [0, 16])
def test_chunks_without_mixed_rows_take_the_sum_of_both(up_to_chunk: int, tmp_path: Path) -> None:
    grid = grid_of(tmp_path, rows_of(up_to_chunk=up_to_chunk))
    for before in (0, 16, 256):
        for n in (1, 8, 64):
            for kv in (16, 256):
                both = us(grid, 512, before, 0, kv) + us(grid, 0, before, n, kv)
                assert us(grid, 512, before, n, kv) == pytest.approx(both, abs=1e-5)


def test_what_was_measured_stays_and_a_complete_profile_has_no_sums(tmp_path: Path) -> None:
    for up_to_chunk in (0, 16, 512):
        rows = rows_of(up_to_chunk=up_to_chunk)
        grid = grid_of(tmp_path, rows)
        assert all(us(grid, *map(int, row[:4])) == pytest.approx(row[4], abs=1e-5) for row in rows)
        assert bool((grid.ps[1:, :, 1:, :] > 0).all())


def test_a_chunk_between_two_with_mixed_rows_lies_between_them(tmp_path: Path) -> None:
    rows = [*rows_of(up_to_chunk=512), (64.0, 0.0, 0.0, 0.0, 6.0)]
    grid = grid_of(tmp_path, rows)
    low, middle, high = (us(grid, chunk, 0, 8, 64) for chunk in (16, 64, 512))
    assert middle == pytest.approx(low + (high - low) * (64 - 16) / (512 - 16), abs=1e-5)
