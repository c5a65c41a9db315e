"""How much uneven choices slow experts down: the database's rows against the expected tiles.

usage: python evaluation/padded_experts.py

The silicon database has times of the same experts with tokens that take them in turn and with loads
that follow a power law. Here are those of ranks that hold all experts, since a rank of several has
other loads. The simulator scales the former to random choices by the tiles of rows that
they fill (`padded_experts`). Here that scale is compared with the measured ratio of the two, which
it was not made from. A power law is more uneven than random choices, so small batches differ.

In a run no padding makes random choices slower than the measured power law, a limit that this
comparison leaves out.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs.experts.grouped_work import GroupedWork, MoeShape, ReachedRates, tile_rows_of
from llmsim.costs.sources.silicon.database import TablePath, database_of
from llmsim.costs.sources.silicon.experts.rows import (
    COLUMNS,
    FIXED_SCALES,
    IN_TURN,
    SHAPE,
    touches_all,
)
from llmsim.model import load_hardware

UNEVEN = "power_law_1.01"
CARDS = ("H100", "H200", "B200")
ENGINES = ("vllm", "sglang")
TOKENS = (1024, 2048, 4096, 8192, 16384)
ELEMENT_BYTES = {"bfloat16": 2.0, "fp8_block": 1.0, "fp8": 1.0, "int4_wo": 0.5, "w4a16_mxfp4": 0.53}
KERNELS = ("weights, card, kernel", ["dtype", "card", "kernel"])
LEAST_EXPERTS = 64
"""Shapes with fewer experts have long runs of rows, and hardly a tile that is not full."""


@dataclass(frozen=True)
class Growth:
    """Times of uneven choices as multiples of those in turn, for one shape and count of tokens."""

    dtype: str
    kernel: str
    card: str
    tokens: int
    measured: float
    expected: float


def main() -> int:
    OneSentenceParser(prog="padded_experts", description=__doc__).parse_args()
    growths = [growth for card in CARDS for growth in _of_card(card)]
    if not growths:
        print("padded_experts: error: aiconfigurator-core is not installed", file=sys.stderr)
        return 2
    found = pd.DataFrame(growths)
    found["tokens"] = found.tokens.map("{:,}".format)
    for heading, columns in (("weights, tokens", ["dtype", "tokens"]), KERNELS):
        print(f"| {heading} | rows | measured | expected | off by, % | without, % |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for names, rows in found.groupby(columns, sort=False):
            print(f"| {', '.join(names)} | {len(rows)} | {_figures(rows)} |")
        print(f"| all | {len(found)} | {_figures(found)} |\n")
    return 0


def _figures(rows: pd.DataFrame) -> str:
    """Median growths, and the median distance of each shape's with the expectation and without."""
    off = 100 * (rows.expected / rows.measured - 1).abs().median()
    without = 100 * (1 / rows.measured - 1).abs().median()
    growths = f"{rows.measured.median():.3f} | {rows.expected.median():.3f}"
    return f"{growths} | {off:.1f} | {without:.1f}"


def _of_card(card: str) -> Iterator[Growth]:
    """Growths of all tables of experts with kernels of these engines on a card."""
    sheet = load_hardware(card)
    database = database_of(sheet.silicon_system) if sheet and sheet.silicon_system else None
    if sheet is None or database is None:
        return
    for table in database.tables("moe"):
        if table.framework in ENGINES:
            yield from _growths(table, card, sheet.memory_bandwidth_bytes_per_s)


def _growths(path: TablePath, card: str, bytes_per_s: int) -> Iterator[Growth]:
    """Every shape and kernel of a table that was timed with both kinds of choices."""
    table = pd.read_parquet(path.path)
    table = table[
        table.moe_dtype.isin(list(ELEMENT_BYTES))
        & ~table.kernel_source.str.contains(FIXED_SCALES)
        & (table.num_experts >= LEAST_EXPERTS)
        & (table.moe_ep_size == 1)
    ]
    series = ["moe_dtype", "kernel_source", *SHAPE]
    table = pd.concat(_touching_all(table, dtype, bytes_per_s) for dtype in ELEMENT_BYTES)
    choices = table[table.distribution.isin([IN_TURN, UNEVEN])]
    least_ms = choices.groupby([*series, "num_tokens", "distribution"]).latency.min()
    times_us = 1e3 * least_ms.unstack("distribution").dropna()
    for (dtype, kernel, *sizes), times in times_us.groupby(series):
        shape = MoeShape(*(int(size) for size in sizes))
        of_shape = times.droplevel(series)
        expected = _expected(
            shape, ELEMENT_BYTES[dtype], tile_rows_of(dtype, kernel), of_shape[IN_TURN], bytes_per_s
        )
        for tokens in sorted(set(TOKENS) & set(of_shape.index)):
            measured = of_shape[UNEVEN][tokens] / of_shape[IN_TURN][tokens]
            yield Growth(dtype, kernel, card, tokens, float(measured), float(expected[tokens]))


def _touching_all(table: pd.DataFrame, dtype: str, bytes_per_s: int) -> pd.DataFrame:
    """The rows of one type of weights that the simulator takes, too."""
    rows = table[table.moe_dtype == dtype]
    if rows.empty:
        return rows
    columns = {name: rows[name].to_numpy() for name in COLUMNS}
    return rows[touches_all(columns, ELEMENT_BYTES[dtype], bytes_per_s)]


def _expected(
    shape: MoeShape,
    element_bytes: float,
    tile_rows: int,
    in_turn_us: "pd.Series[float]",
    bytes_per_s: int,
) -> "pd.Series[float]":
    """By the simulator's rule, at the rates that the rows in turn reach."""
    counts = in_turn_us.index.to_numpy(np.float64)
    in_turn = GroupedWork.in_turn(shape, counts, tile_rows, element_bytes)
    rates = ReachedRates.of_rows(in_turn, in_turn_us.to_numpy(np.float64), bytes_per_s)
    at_random = GroupedWork.at_random(shape, counts, tile_rows, element_bytes)
    return pd.Series(rates.us(at_random) / rates.us(in_turn), index=in_turn_us.index)


if __name__ == "__main__":
    sys.exit(main())
