"""Compares the time of several prompts in one attention call with the rows that the silicon
database has of such calls: `python evaluation/prompts_together.py`.

A prompt alone and the largest batch of each length give the rule (docs/explanation/costs.md); all
other batches of up to 16,384 tokens test it, and the sum of as many calls. Prints a table in
Markdown: errors are simulated minus measured, percent, over all numbers of heads.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from llmsim.costs.sources.silicon.attention.dense import AttentionRows
from llmsim.costs.sources.silicon.attention.grid import further_prompt_times, prompt_times
from llmsim.costs.sources.silicon.database import TablePath, database_of, read_columns

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server")
MOST_TOKENS = 16_384
KINDS = {
    "context_attention": ("attention", ("num_heads", "num_key_value_heads", "head_dim")),
    "mla_context": ("latent attention", ("num_heads", "gemm_type")),
}
COLUMNS = ("batch_size", "isl", "step", "latency", "kv_cache_dtype")
Floats = NDArray[np.float64]


def shapes(table: TablePath, by: Sequence[str]) -> Iterator[AttentionRows]:
    """The rows of each shape with a 16-bit cache, and without a window."""
    windows = ("window_size",) if "attention/" in str(table.path) else ()
    rows = read_columns(table.path, [*COLUMNS, *by, *windows])
    keep = rows["kv_cache_dtype"] == "bfloat16"
    if "window_size" in rows:
        keep &= rows["window_size"] == 0
    rows = {name: column[keep] for name, column in rows.items()}
    for shape in sorted(set(zip(*(rows[name].tolist() for name in by), strict=True))):
        own = np.ones(len(rows["isl"]), dtype=bool)
        for name, value in zip(by, shape, strict=True):
            own &= rows[name] == value
        kept = {name: column[own] for name, column in rows.items()}
        yield AttentionRows(table.label, True, 1.0, 1.0, kept)


def errors(rows: AttentionRows) -> tuple[list[float], list[float]]:
    """Of the sum and of the rule, percent, for the batches of one shape that did not give it."""
    (lengths, alone_us), (_, further_us) = prompt_times(rows), further_prompt_times(rows)
    batches, isl, us = (rows.numbers(name) for name in ("batch_size", "isl", "latency"))
    sums, ours = [], []
    for i, length in enumerate(lengths):
        here = isl == length
        for count in np.unique(batches[here])[1:-1]:
            if count * length > MOST_TOKENS:
                continue
            measured_us = us[here & (batches == count)].min() * 1e3
            sums.append(count * alone_us[i] / measured_us - 1)
            ours.append((alone_us[i] + (count - 1) * further_us[i]) / measured_us - 1)
    return sums, ours


def line(system: str, kind: str) -> str:
    """One row of the page; "" where nobody measured the kind on the card."""
    database = database_of(system)
    name, by = KINDS[kind]
    tables = [] if database is None else database.tables(kind)
    if not tables:
        return ""
    sums: list[float] = []
    ours: list[float] = []
    for rows in shapes(tables[0], by):
        of_sum, of_rule = errors(rows)
        sums += of_sum
        ours += of_rule
    of_sums, of_rules = np.array(sums) * 100, np.array(ours) * 100
    cells = [system, name, f"{len(ours):,}", f"{np.median(of_sums):+.0f}"]
    cells += [f"{np.median(of_rules):+.1f}", f"{np.median(np.abs(of_rules)):.1f}"]
    return f"| {' | '.join([*cells, f'{np.percentile(np.abs(of_rules), 90):.0f}'])} |"


def main() -> None:
    print("| card | rows | batches | sum: median | rule: median | median of abs. | 90th |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, system in product(KINDS, SYSTEMS):
        if row := line(system, kind):
            print(row)


if __name__ == "__main__":
    main()
