"""Sums of picoseconds, attojoules and bytes are exact, and no module that makes figures adds them
otherwise.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from package import package_sources

from llmsim.exact import exact_sum

ROOT = Path(__file__).resolve().parents[1]
ADDING = {
    "sum",
    "cumsum",
    "dot",
    "vdot",
    "inner",
    "einsum",
    "trace",
    "mean",
    "prod",
    "cumprod",
    "nansum",
    "average",
}
EXACT = "exact_sum"
INTEGER_UNITS = (
    "_ps",
    "_aj",
    "_bytes",
    "_ns",
    "blame",
    "counters",
    "counts",
    "tokens",
    "rows",
    "blocks",
    "emitted",
)
"""Names of columns that hold integers: what ends in a unit, and what the results call its counts.
"""
CHECKED = (
    "results",
    "power",
    "export",
    "search",
    "validation",
    "lowering",
    "costs/explain.py",
    "cli",
)
_SHARED = "use.share_ps * (energy.total_aj / AJ_PER_J / given_ps)"
ALLOWED = {
    (
        "lowering/speculation/request_speculation.py",
        "np.cumsum([len(row) for row in rows], out=offsets[1:])",
    ): "entries of lists that are in memory",
    ("results/requests/metrics.py", "np.cumsum(counts)"): "numbers of latencies, not their lengths",
    (
        "power/account.py",
        f"np.add.at(joules, use.share_request, {_SHARED})",
    ): "joules in double precision",
    (
        "power/intervals.py",
        "np.cumsum(self.end_ps - self.start_ps)",
    ): "disjoint intervals of one clock",
    ("validation/logs/recording.py", "np.cumsum(self.itl_counts)"): "numbers of gaps",
    ("validation/logs/recording.py", "np.cumsum(counts)"): "numbers of gaps",
    ("validation/logs/recording.py", "counts.sum()"): "numbers of gaps",
    ("validation/compare/difference.py", "np.cumsum(counts)"): "numbers of gaps",
    ("validation/compare/difference.py", "times @ self._counts"): "numbers of gaps, drawn again",
    (
        "validation/compare/difference.py",
        "np.add.reduceat(ms, np.cumsum(counts) - counts)",
    ): "milliseconds in double precision",
    ("export/csv.py", "np.cumsum(itl_ps)"): "the gaps of one request end at its finish",
    ("search/space.py", "math.prod(counts)"): "Python integers",
    (
        "export/benchmark_formats/guidellm.py",
        "seconds(tables.ps('e2el_ps')).mean()",
    ): "seconds in double precision",
    (
        "export/benchmark_formats/openmetrics.py",
        "np.add.at(counts, (moment, slot), 1)",
    ): "numbers of requests",
    ("export/benchmark_formats/openmetrics.py", "np.cumsum(counts, axis=0)"): "numbers of requests",
    (
        "export/benchmark_formats/openmetrics.py",
        "np.cumsum(np.cumsum(counts, axis=0), axis=1)",
    ): "numbers of requests",
    (
        "export/html_report/runs.py",
        "part[rows].clip(0).mean()",
    ): "a mean, which numpy adds in double precision",
}
"""Additions of integer columns that cannot overflow, each with its reason."""

int64s = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(int64s, st.integers(0, 1 << 30)), max_size=40))
def test_it_is_the_sum_of_python_integers(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.int64)
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    assert exact_sum(values) == sum(value for value, _ in pairs)
    assert exact_sum(values, counts) == sum(value * count for value, count in pairs)


@given(st.integers(1, 1 << 21), int64s)
def test_many_equal_values(count: int, value: int) -> None:
    assert exact_sum(np.full(count, value, dtype=np.int64)) == count * value


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint8, np.bool_])
def test_narrow_columns_are_widened(kind: type) -> None:
    largest = 1 if kind is np.bool_ else np.iinfo(kind).max
    assert exact_sum(np.full(300_000, largest, dtype=kind)) == 300_000 * int(largest)


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        exact_sum(np.zeros(2))
    with pytest.raises(TypeError, match="float64"):
        exact_sum(np.zeros(2, dtype=np.int64), np.ones(2))


def _names(node: ast.AST) -> set[str]:
    """Names, attributes and string subscripts in an expression."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            found.add(child.id)
        elif isinstance(child, ast.Attribute):
            found.add(child.attr)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            found.add(child.value)
    return found


def _adds(node: ast.AST) -> bool:
    """Whether numpy adds here: a method or function of ADDING, a matrix product, or a ufunc's
    reduction.
    """
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    on_ufunc = isinstance(node.func.value, ast.Attribute) and node.func.value.attr in (
        "add",
        "multiply",
    )
    return node.func.attr in ADDING or on_ufunc


def _integer(name: str) -> bool:
    return any(name == word.lstrip("_") or name.endswith(word) for word in INTEGER_UNITS)


def additions(source: str) -> list[str]:
    """Expressions of a module in which numpy adds columns of integers."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if _adds(node) and any(_integer(name) for name in _names(node) - {EXACT}):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        "total = results.blame[name][rows].sum()",
        "total = int(h.kv_transfer_bytes[rows].sum())",
        "total = np.sum(requests.finish_ps)",
        "total = tokens @ each_bytes",
        "total = np.dot(counts, itl_values_ps)",
        "mean = (e2el_ps - ttft_ps).mean()",
        "np.add.at(energy, rows, moved_aj)",
        'total = results.counters["busy_ps"].sum()',
    ],
)
def test_the_search_finds_such_sums(wrong: str) -> None:
    assert additions(wrong)


def test_no_module_adds_them_otherwise() -> None:
    found, checked = set(), 0
    for part in CHECKED:
        where = package_sources() / part
        for path in sorted(where.rglob("*.py")) if where.is_dir() else [where]:
            name = path.relative_to(package_sources()).as_posix()
            found |= {
                (name, expression) for expression in additions(path.read_text(encoding="utf-8"))
            }
            checked += 1
    assert checked > 60
    assert found - ALLOWED.keys() == set(), (
        "use llmsim.exact.exact_sum, or say in ALLOWED why it cannot overflow"
    )
    assert ALLOWED.keys() - found == set(), "these are no longer there"
