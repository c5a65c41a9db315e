"""Regressors fitted on a user's own attention measurements: linear in physical features, or a
random forest.

Both are judged by five-fold cross-validation; the one with the lower median error prices the run,
and both errors are said. The forest needs scikit-learn (`pip install "llmsim[predict]"`); without
it the linear one is used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64, Provenance
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import MixedGrid, to_ps
from llmsim.costs.sources.bundle.attention import AXES
from llmsim.costs.sources.csv_tables import Table

Floats = NDArray[np.float64]
Predictor = Callable[[Floats], Floats]

FOLDS = 5
TREES, SEED = 60, 1
POINTS_PER_OCTAVE = 2


def fitted_grid(table: Table) -> tuple[MixedGrid, str]:
    """A complete grid over the measured ranges, and a sentence about which regressor made it, and
    how sure it is.
    """
    x = np.stack([table.number[name] for name in AXES], axis=1)
    y = np.maximum(table.number["time_us"], 1e-3)
    fits: dict[str, Callable[[Floats, Floats], Predictor]] = {"linear": fit_linear}
    if importlib.util.find_spec("sklearn") is not None:
        fits["random forest"] = fit_forest
    errors = {name: cross_validated(fit, x, y) for name, fit in fits.items()}
    best = min(errors, key=lambda name: errors[name][0])
    grid = _grid(fits[best](x, y), x)
    found = ", ".join(
        f"{name} {half:.1f} % (nine in ten {most:.1f} %)" for name, (half, most) in errors.items()
    )
    missing = (
        "" if "random forest" in fits else "; scikit-learn is not installed, so no forest was tried"
    )
    return (
        grid,
        (
            f"attention is predicted by a {best} regressor; cross-validated median errors: "
            f"{found}{missing}"
        ),
    )


def cross_validated(
    fit: Callable[[Floats, Floats], Predictor], x: Floats, y: Floats
) -> tuple[float, float]:
    """(median, 90th percentile) of the absolute error, percent, over rows that the fit
    did not see.
    """
    fold = np.arange(len(y)) % FOLDS
    errors = [
        np.abs(fit(x[fold != one], y[fold != one])(x[fold == one]) / y[fold == one] - 1)
        for one in range(FOLDS)
    ]
    together = np.concatenate(errors) * 100
    return float(np.percentile(together, 50)), float(np.percentile(together, 90))


def features(x: Floats) -> Floats:
    """What attention time is made of: calls, tokens, causal pairs, KV read; columns of (q, k, n,
    kv).
    """
    q, k, n, kv = x.T
    work = [np.ones_like(q), q > 0, q, q * (k + q / 2), k * (q > 0), n > 0, n, n * kv, kv]
    return np.stack(work, axis=1).astype(np.float64)


def fit_linear(x: Floats, y: Floats) -> Predictor:
    """Least relative squares with coefficients >= 0 (every feature is work)."""
    design = features(x)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    weights = nonnegative_least_squares(design / scale / y[:, None], np.ones_like(y)) / scale
    return lambda at: np.asarray(np.maximum(features(at) @ weights, 1e-3))


def nonnegative_least_squares(a: Floats, b: Floats) -> Floats:
    """argmin |a x - b| over x >= 0: the active-set method of Lawson and Hanson (1974),
    chapter 23.
    """
    count = a.shape[1]
    x, passive = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = a.T @ (b - a @ x)
        gradient[passive] = -np.inf
        if passive.all() or gradient.max() <= 1e-10:
            break
        passive[int(np.argmax(gradient))] = True
        while True:
            trial = np.zeros(count)
            trial[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
            if (trial[passive] > 0).all():
                x = trial
                break
            low = passive & (trial <= 0)
            step = float(np.min(x[low] / np.maximum(x[low] - trial[low], 1e-30)))
            x = x + step * (trial - x)
            passive &= x > 1e-15
            x[~passive] = 0.0
    return x


def fit_forest(x: Floats, y: Floats) -> Predictor:
    """Logarithms of time over logarithms of the shape and of the linear features; the same trees
    every time.
    """
    from sklearn.ensemble import RandomForestRegressor

    def columns(at: Floats) -> Floats:
        return np.asarray(np.log1p(np.concatenate([at, features(at)[:, 2:]], axis=1)))

    forest = RandomForestRegressor(n_estimators=TREES, random_state=SEED, n_jobs=1).fit(
        columns(x), np.log(y)
    )
    return lambda at: np.asarray(np.exp(forest.predict(columns(at))), dtype=np.float64)


def _grid(predict: Predictor, x: Floats) -> MixedGrid:
    axes = [_axis(column) for column in x.T]
    mesh = np.meshgrid(*(axis.astype(np.float64) for axis in axes), indexing="ij")
    at = np.stack([m.ravel() for m in mesh], axis=1)
    at[at[:, 0] == 0, 1] = (
        0.0  # without a prefill its context does not matter, without decodes neither does theirs
    )
    at[at[:, 2] == 0, 3] = 0.0
    us = predict(at).reshape(mesh[0].shape)
    us[0, :, 0, :] = 0.0
    marks = np.full(us.shape, Provenance.INTERPOLATED, dtype=np.uint8)
    return MixedGrid(axes[0], axes[1], axes[2], axes[3], to_ps(us), marks)


def _axis(values: Floats) -> Int64:
    """0, and points from 1 to the largest measured value; what lies beyond continues the last
    segment.
    """
    return np.insert(geometric_axis(1, max(2, int(values.max())), POINTS_PER_OCTAVE), 0, 0)
