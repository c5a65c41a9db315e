"""Times and copies that differ from layer to layer where weights stream: each layer
takes its own.
"""

from typing import Any

import numpy as np
from test_streams import (
    ONE_PS_PER_BYTE,
    SEQUENCES,
    TOKENS,
    US,
    attention_node,
    operator,
    program,
    run,
)

from llmsim import _native

LAYERS = 3
FIRST_US, SECOND_US, HEAD_US = (10, 20, 40), (100, 200, 400), 7


def sampled(by_layer: tuple[int, ...]) -> Any:
    """One sample for each layer, whatever the batch; in microseconds, or as many bytes as ps."""
    points = np.array([1, TOKENS], np.int64)
    values = np.array([[each * US] * 2 for each in by_layer], np.int64).ravel()
    return _native.SampledCostTable(points, LAYERS, 1, values, 1, 0)


def sampled_operator(name: str, by_layer: tuple[int, ...]) -> Any:
    kind, feature = _native.NodeKind.COMPUTE, _native.Feature.TOKENS
    table = np.zeros(TOKENS + 1, np.int64)
    return _native.Operator(
        name,
        kind,
        feature,
        1,
        LAYERS,
        table,
        np.zeros(TOKENS + 1, np.uint8),
        sampled=sampled(by_layer),
    )


def layers(first: Any, second: Any) -> Any:
    head = operator("head", 2, 1, np.full(SEQUENCES + 1, HEAD_US * US), _native.Feature.SEQUENCES)
    return program([first, attention_node(LAYERS), second, head], np.zeros(4), np.zeros(4))


def step_us(a_program: Any, weights: Any | None) -> float:
    """Of the first step, which begins with the run; None: nothing is elsewhere."""
    config = None
    if weights is not None:
        config = _native.OffloadConfig()
        config.weights = weights
    steps = run(a_program, config, [(0, 8, 1)], depth=1).steps()
    return float(steps["end_ps"][0] - steps["start_ps"][0]) / US


def test_each_layer_takes_its_own_draw_of_each_operator() -> None:
    weights = _native.WeightStreaming()
    weights.sources = [ONE_PS_PER_BYTE]
    both = layers(sampled_operator("first", FIRST_US), sampled_operator("second", SECOND_US))
    for elsewhere in (weights, None):
        assert step_us(both, elsewhere) == sum(FIRST_US) + sum(SECOND_US) + HEAD_US
    busy_us = {
        number: sum(ps) / US for _, number, ps in run(both, None, [(0, 8, 1)], depth=1).busy_time()
    }
    assert (busy_us[0], busy_us[2], busy_us[3]) == (sum(FIRST_US), sum(SECOND_US), HEAD_US)


def test_each_layer_copies_its_own_draw() -> None:
    """Copies of both operators come one after the other; the last layer computes when its own is
    there.
    """
    flat = [operator(name, 1, LAYERS, np.full(TOKENS + 1, US)) for name in ("first", "second")]
    weights = _native.WeightStreaming()
    weights.buffers, weights.sources = 9, [ONE_PS_PER_BYTE]
    weights.by_batch, weights.by_batch_from, weights.demand = [[]] * 4, [0] * 4, [False] * 4
    weights.sampled = [sampled(FIRST_US), None, sampled(SECOND_US), None]
    assert step_us(layers(*flat), weights) == sum(FIRST_US) + sum(SECOND_US) + 1 + HEAD_US
