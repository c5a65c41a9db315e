"""Times between the tokens of a request, counted over a run and listed for one request."""

from collections import Counter
from typing import Any

import numpy as np
import pd
import pytest
from pd import PER_TOKEN, STEP, Cluster, run
from simulations import simulation

from llmsim import _native


def always(drafts: int) -> Any:
    """Every draft holds."""
    config = _native.SpeculationConfig()
    config.tokens = config.lookahead = drafts
    acceptance = _native.Acceptance()
    acceptance.chance = [1 << 53] * drafts
    config.acceptance = acceptance
    return config


def counted(sim: Any) -> dict[int, int]:
    """Value in ps -> how often, over all finished requests."""
    values, counts = _native.TokenTimes(sim).inter_token_latencies()
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(("output", "together"), [(2, 0), (3, 1), (5, 2)])
def test_tokens_of_one_step_come_together(
    monkeypatch: pytest.MonkeyPatch, output: int, together: int
) -> None:
    """The prompt's step gives one token, each later one a token and its draft, the last one what is
    left.
    """
    monkeypatch.setattr(pd, "speculation", always)
    sim = run([(0, 32, output)], Cluster([], [], both=[50], drafts=1))
    step_ps = STEP + 2 * PER_TOKEN
    expected = {0: together, step_ps: output - 1 - together}
    assert counted(sim) == {value: count for value, count in expected.items() if count}


def test_counts_are_those_of_the_lists() -> None:
    """With drafts, preemptions and requests that give up, whose tokens do not count."""
    rows = [(index * 1000, 40 + 7 * index, 1 + 3 * index) for index in range(12)]
    cluster = Cluster([], [], both=[18], max_seqs=4, drafts=2)
    sim = run(rows, cluster, timeouts=[-1] * 11 + [50_000_000_000])
    requests, emissions = sim.requests(), _native.TokenTimes(sim)
    assert requests["preemptions"].sum() > 0 and 5 in requests["status"]
    gaps: Counter[int] = Counter()
    for request in np.flatnonzero(requests["status"] == 3):
        listed = emissions.inter_token_latencies_of(int(request)).tolist()
        assert len(listed) == requests["emitted_tokens"][request] - 1
        assert sum(listed) == requests["finish_ps"][request] - requests["first_token_ps"][request]
        gaps.update(listed)
    assert counted(sim) == gaps


def test_more_values_than_the_small_table_holds_are_each_counted_once() -> None:
    """Every token of a long answer takes longer than the one before; two such answers share all
    values.
    """
    output, n = 70_000, 2
    axis, zeros = np.array([0, 64], np.int64), np.zeros(4, np.int64)
    growing = np.array([0, 0, 0, 64_000], np.int64)
    kinds = (_native.NodeKind.ATTENTION, _native.Feature.TOKENS, 1, 1)
    ops = [_native.Operator("attention", *kinds, np.empty(0, np.int64), np.empty(0, np.uint8))]
    for feature in (_native.Feature.TOKENS, _native.Feature.SEQUENCES):
        table = np.full(65, STEP, np.int64)
        ops.append(
            _native.Operator(
                "all", _native.NodeKind.COMPUTE, feature, 2, 1, table, np.zeros(65, np.uint8)
            )
        )
    attention = _native.Attention.split([axis, axis], zeros, [axis, axis], growing, 0, 0)
    program = _native.Program(
        ops, attention, np.arange(65, dtype=np.int32), _native.LowerBound(), 0
    )
    scheduler, kv = _native.SchedulerConfig(), _native.KvCacheConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = 8, 64
    kv.num_blocks, kv.max_model_len = 10_000, 100_000
    scheduler.kv = kv
    spec = _native.GroupSpec(_native.GroupConfig(), scheduler, program)
    sim = simulation([(0, 8, output), (10**15, 8, output)], [spec])
    while not sim.run(100_000):
        pass
    values, counts = _native.TokenTimes(sim).inter_token_latencies()
    assert len(values) == output - 1 and (np.diff(values) > 0).all() and (counts == n).all()
    assert (_native.TokenTimes(sim).inter_token_latencies_of(1) == values).all()
