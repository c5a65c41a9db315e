"""Regressors of attention: they find what made the rows, and say how sure they are."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.costs.sources.bundle.attention import read_attention
from llmsim.costs.sources.bundle.attention_regression import (
    cross_validated,
    features,
    fit_linear,
    fitted_grid,
    nonnegative_least_squares,
)
from tests.costs.builders import write_csv

WEIGHTS = np.array([6.0, 2.0, 0.01, 1e-5, 2e-4, 3.0, 0.2, 1e-3, 1e-4])


def shapes(count: int, seed: int = 1) -> np.ndarray:
    """Batches of all kinds: prompts alone, decodes alone, both."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.integers(1, most, count) for most in (4096, 8192, 256, 8192)], axis=1)
    x[::3, :2] = 0
    x[1::3, 2:] = 0
    return x.astype(float)


def test_a_linear_law_is_found() -> None:
    x = shapes(300)
    y = features(x) @ WEIGHTS
    half, most = cross_validated(fit_linear, x, y)
    assert half < 0.01
    assert most < 0.1
    other = shapes(100, seed=2)
    assert fit_linear(x, y)(other) == pytest.approx(features(other) @ WEIGHTS, rel=1e-4)


@given(st.integers(0, 1000))
def test_least_squares_with_signs_is_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(12, 4)), rng.normal(size=12)
    x = nonnegative_least_squares(a, b)
    gradient = a.T @ (b - a @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-7).all()  # no coefficient would help by growing
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-7  # nor by shrinking (Karush, Kuhn, Tucker)


def test_a_bundle_is_fitted_and_says_its_error(tmp_path: Path) -> None:
    x = shapes(200)
    y = features(x) @ WEIGHTS
    rows = {tuple(int(v) for v in shape): time for shape, time in zip(x, y, strict=True)}
    write_csv(
        tmp_path / "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        [(*shape, time) for shape, time in rows.items()],
    )
    grid, sentence = fitted_grid(read_attention(tmp_path / "attention.csv"))
    assert "cross-validated median errors: linear 0.0 %" in sentence
    at = np.array([[0.0, 0.0, grid.n_axis[3], grid.kv_axis[4]]])
    assert grid.ps[0, 0, 3, 4] == pytest.approx(float((features(at) @ WEIGHTS)[0]) * 1e6, rel=1e-3)
    assert (grid.ps[0, :, 0, :] == 0).all()


def test_the_forest_is_repeatable_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    x = shapes(90)
    write_csv(
        tmp_path / "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        [
            (*map(int, shape), time)
            for shape, time in zip(x, np.ceil(features(x) @ WEIGHTS), strict=True)
        ],
    )
    first, second = (fitted_grid(read_attention(tmp_path / "attention.csv")) for _ in range(2))
    assert "random forest" in first[1]
    assert first[1] == second[1]
    assert (first[0].ps == second[0].ps).all()
