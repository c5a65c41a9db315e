"""Gated delta nets from tables made here: which rows are taken for which heads, and what becomes of
their times.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from costs.builders import request

from llmsim.core import Provenance
from llmsim.costs.source import Curve
from llmsim.costs.sources.silicon.attention.linear import COLUMNS, linear_curve
from llmsim.costs.sources.silicon.database import TablePath
from llmsim.model import Operator

MODEL = "Qwen/Qwen3-Next-80B-A3B-Instruct"
"""16 key heads and 32 value heads, all of 128."""
US = 10**6
Row = tuple[str, str, int, int, int, int, int, int, float]


def context(
    us: float, tokens: int, keys: int, values: int, batch: int = 1, kernel: str = "chunk"
) -> Row:
    return (kernel, "context", batch, tokens, keys, values, 128, 128, us / 1e3)


def generation(us: float, batch: int, keys: int, values: int) -> Row:
    return ("recurrent", "generation", batch, 1, keys, values, 128, 128, us / 1e3)


def table(folder: Path, rows: Iterable[Row]) -> TablePath:
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    parquet.write_table(pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))), path)
    return TablePath(path, "table")


def curve(tables: list[TablePath], name: str, tp: int = 1, last: int = 64) -> Curve | None:
    asked = request(MODEL, "H100", tp=tp)
    op = next(op for op in asked.operators if op.name == name)
    return linear_curve(tables, op, asked, last)


def scans(slope_us: float, keys: int, values: int) -> list[Row]:
    return [context(5 + slope_us * tokens, tokens, keys, values) for tokens in (1, 16, 64)]


@pytest.mark.parametrize(("tp", "slope_us"), [(1, 3), (2, 2), (4, 1)])
def test_a_rank_has_its_share_of_both_kinds_of_heads(
    tmp_path: Path, tp: int, slope_us: int
) -> None:
    """Rows of other shapes lie nearer by one kind of heads alone."""
    rows = [
        *scans(3, 16, 32),
        *scans(2, 8, 16),
        *scans(1, 4, 8),
        *scans(7, 16, 16),
        *scans(8, 4, 32),
        *scans(9, 32, 8),
    ]
    found = curve([table(tmp_path, rows)], "linear_attention", tp)
    assert found is not None and found.source == "table"
    assert found.ps[64] == 63 * slope_us * US  # beyond one token
    assert (
        found.provenance[16] == Provenance.MEASURED
        and found.provenance[17] == Provenance.INTERPOLATED
    )


def test_other_heads_scale_what_grows(tmp_path: Path) -> None:
    """Half of the value heads measured: the slope is doubled, the part of an empty
    launch is not.
    """
    rows = [
        context(5 + 2 * tokens, tokens, 16, 16, kernel="causal_conv1d_fn") for tokens in (1, 16, 64)
    ]
    found = curve([table(tmp_path, rows)], "linear_conv")
    assert found is not None and found.source == "table, scaled from 16 value heads"
    assert found.ps[64] == (7 + 2 * 126) * US and set(found.provenance.tolist()) == {
        Provenance.SCALED
    }


def test_each_operator_has_its_own_rows(tmp_path: Path) -> None:
    """The convolution by its kernel, prompts one at a time, decode steps by sequences; of equal
    rows the fastest.
    """
    rows = [
        *scans(2, 16, 32), context(500, 64, 16, 32),
        *(context(1, tokens, 16, 32, batch=4) for tokens in (1, 16, 64)),
        *(context(30 + tokens, tokens, 16, 32, kernel="causal_conv1d_fn") for tokens in (1, 64)),
        *(generation(10 + 4 * batch, batch, 16, 32) for batch in (1, 8, 64)),
    ]  # fmt: skip
    tables = [table(tmp_path, rows)]
    at_64 = {}
    for name in ("linear_attention", "linear_conv", "linear_state"):
        found = curve(tables, name)
        assert found is not None
        at_64[name] = int(found.ps[64])
    assert at_64 == {"linear_attention": 126 * US, "linear_conv": 94 * US, "linear_state": 266 * US}


def test_more_tokens_never_take_less(tmp_path: Path) -> None:
    rows = [
        context(us, tokens, 16, 32)
        for tokens, us in ((1, 10.0), (16, 30.0), (32, 20.0), (64, 40.0))
    ]
    found = curve([table(tmp_path, rows)], "linear_attention")
    assert found is not None and (np.diff(found.ps) >= 0).all() and found.ps[32] == 20 * US


def test_without_rows_of_its_head_sizes_or_with_one_the_next_table_is_taken(tmp_path: Path) -> None:
    other = [(*row[:6], 64, 128, row[8]) for row in scans(9, 16, 32)]
    tables = [
        table(tmp_path, other),
        table(tmp_path, scans(9, 16, 32)[:1]),
        table(tmp_path, scans(2, 16, 32)),
    ]
    found = curve(tables, "linear_attention")
    assert found is not None and found.ps[64] == 126 * US
    assert curve(tables[:2], "linear_attention") is None


def test_other_operators_and_models_are_not_its_business(tmp_path: Path) -> None:
    tables = [table(tmp_path, scans(2, 16, 32))]
    assert curve(tables, "qkv_proj") is None
    llama = request("meta-llama/Llama-3.1-8B", "H100")
    named: Operator = next(
        op for op in request(MODEL, "H100").operators if op.name == "linear_attention"
    )
    assert linear_curve(tables, named, llama, 64) is None


def test_kimi_delta_attention_takes_its_rows_but_for_the_convolution(tmp_path: Path) -> None:
    """Kimi Linear has 32 heads of 128; a step's decodes take the recurrent kernel, and prompts what
    the chunked one takes beyond one token.
    """
    rows = [
        *scans(3, 32, 32),
        *(generation(7 + batch, batch, 32, 32) for batch in (1, 8, 64)),
        *(context(783, tokens, 32, 32, kernel="causal_conv1d") for tokens in (1, 64)),
    ]
    asked = request("moonshotai/Kimi-Linear-48B-A3B-Instruct", "H100")
    tables = [table(tmp_path, rows)]
    ops = {op.name: op for op in asked.operators}
    recurrence = linear_curve(tables, ops["linear_attention"], asked, 64)
    state = linear_curve(tables, ops["linear_state"], asked, 64)
    assert recurrence is not None
    assert state is not None
    assert recurrence.ps[64] == 3 * 63 * US
    assert state.ps[8] == 15 * US
    assert linear_curve(tables, ops["linear_conv"], asked, 64) is None
