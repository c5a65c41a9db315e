"""Tables of the silicon database: columns as they are written, and their distinct rows."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from llmsim.costs.sources.silicon.database import distinct_rows, read_columns

WORDS = ["fp8", "bfloat16", "fp8", None]


def test_columns_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    table = pyarrow.table({"word": WORDS, "count": [1, 2, 3, 4], "ms": [0.5, 1.5, 2.5, 3.5]})
    parquet.write_table(table, path, row_group_size=3)
    rows = read_columns(path, ["ms", "word", "count", "not there"])
    assert list(rows) == ["ms", "word", "count"]
    assert rows["word"].tolist() == WORDS
    assert (rows["word"] == "fp8").tolist() == [True, False, True, False]
    assert rows["count"].tolist() == [1, 2, 3, 4] and rows["ms"].tolist() == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize("largest", [3, 1 << 20, 1 << 40])
@given(data=st.data())
def test_distinct_rows_are_those_of_numpy(largest: int, data: st.DataObject) -> None:
    """Also where the columns' ranges together exceed 63 bits."""
    row = st.lists(st.integers(-largest, largest), min_size=3, max_size=3)
    table = np.array(data.draw(st.lists(row, min_size=1, max_size=20)), dtype=np.int64)
    rows, owner = distinct_rows(table)
    expected, place = np.unique(table, axis=0, return_inverse=True)
    assert rows.tolist() == expected.tolist() and owner.tolist() == place.reshape(-1).tolist()
