"""Speculative decoding: exact limits, draws that depend on nothing else, and what a
drafter costs.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import check, requests_strategy
from scheduling.tiny import MS, Options, program, run, schedule
from simulations import simulation

from llmsim import _native
from llmsim.config.engine.speculative import SpeculativeConfig, resolve_speculation
from llmsim.lowering.scheduler import acceptance, chance

ALWAYS = 1 << 53


def speculation(tokens: int, rates: list[float], **fields: Any) -> Any:
    native = _native.SpeculationConfig()
    native.tokens, native.lookahead = tokens, tokens
    native.acceptance = acceptance(rates)
    for name, value in fields.items():
        setattr(native, name, value)
    return native


def drafting(tokens: int, rates: list[float], **fields: Any) -> dict[str, Any]:
    return {"speculation": speculation(tokens, rates, **fields)}


@pytest.mark.parametrize("depth", [1, 2])
def test_if_no_draft_holds_every_step_gives_one_token(depth: int) -> None:
    sim = run([(0, 40, 20)], Options(depth=depth, extra=drafting(3, [0.0] * 3)))
    plain = run([(0, 40, 20)], Options(depth=depth))
    assert sim.counters()["steps"][0] == plain.counters()["steps"][0] == 20
    assert [tokens for ((_, tokens, _),) in schedule(sim)] == [40] + [4] * 19
    assert (
        [before for ((_, _, before),) in schedule(sim)][1:5] == [40, 41, 42, 43]
        if depth == 1
        else True
    )
    assert (sim.requests()["finish_ps"] == plain.requests()["finish_ps"]).all()
    counters = sim.counters()
    assert (
        counters["verifications"][0],
        counters["drafted_tokens"][0],
        counters["accepted_tokens"][0],
    ) == (19, 57, 0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_if_all_drafts_hold_a_step_gives_all_of_them_and_one_more(tokens: int, depth: int) -> None:
    answer = 31
    sim = run([(0, 40, answer)], Options(depth=depth, extra=drafting(tokens, [1.0] * tokens)))
    verifications = -(-(answer - 1) // (tokens + 1))
    assert sim.counters()["verifications"][0] == verifications
    assert sim.counters()["accepted_tokens"][0] == tokens * verifications
    assert sim.requests()["emitted_tokens"][0] == answer
    gaps = _native.TokenTimes(sim).inter_token_latencies_of(0)
    whole, rest = divmod(answer - 1, tokens + 1)
    expected = ([MS] + [0] * tokens) * whole + ([MS] + [0] * (rest - 1) if rest else [])
    assert gaps.tolist() == expected
    assert sim.accepted_at()[0].tolist() == [verifications] * tokens


def test_what_holds_depends_on_the_request_and_its_answer_alone() -> None:
    """Beside others, in another order of steps, and asynchronously, a request's answer grows in the
    same strides.
    """
    extra = drafting(4, [0.8, 0.6, 0.5, 0.2])

    def strides(requests: list[tuple[float, int, int]], row: int, **options: Any) -> list[int]:
        sim = run(requests, Options(extra=extra, **options))
        gaps = _native.TokenTimes(sim).inter_token_latencies_of(row)
        starts = [0, *(np.flatnonzero(gaps > 0) + 1).tolist(), len(gaps) + 1]
        return np.diff(starts).tolist()

    alone = strides([(0, 30, 60)], 0)
    assert len(set(alone)) > 2
    assert strides([(0, 30, 60), (1, 90, 40), (3, 10, 70)], 0, budget=32) == alone
    assert strides([(0, 30, 60), (1, 90, 40)], 0, depth=2) == alone


def test_rates_are_met_in_the_long_run_and_a_seed_changes_the_draws() -> None:
    native = acceptance([0.7, 0.5, 0.9])
    held = np.array(
        [native.accepted(row, emitted, 3) for row in range(200) for emitted in range(200)]
    )
    shares = [float((held > i).mean()) for i in range(3)]
    assert shares == pytest.approx([0.7, 0.35, 0.315], abs=0.01)
    native.seed = 1
    again = np.array(
        [native.accepted(row, emitted, 3) for row in range(200) for emitted in range(200)]
    )
    assert (again != held).mean() > 0.3
    assert (chance(0.0), chance(1.0)) == (0, ALWAYS)


def test_drafts_may_depend_on_the_number_of_sequences() -> None:
    extra = drafting(4, [0.0] * 4, tokens_by_sequences=[0, 4, 1, 1, 1, 1, 1, 1, 1])
    sim = run([(0, 40, 10), (4, 40, 3)], Options(extra=extra))
    tokens = [[t for _, t, _ in step] for step in schedule(sim)]
    assert tokens[:4] == [[40], [5], [5], [5]]
    assert [5, 40] in tokens and [2, 2] in tokens and tokens[-1] == [5]


def test_a_proposer_that_finds_nothing_leaves_plain_decodes() -> None:
    sim = run(
        [(0, 40, 200)],
        Options(extra=drafting(3, [0.0] * 3, proposal_chance=ALWAYS // 4, lookahead=0)),
    )
    lengths = np.array([step[0][1] for step in schedule(sim)][1:])
    assert set(lengths.tolist()) == {1, 4}
    assert 0.1 < float((lengths == 4).mean()) < 0.4


def test_a_drafter_takes_one_pass_over_the_step_and_one_for_each_further_draft() -> None:
    """Steps of 1 ms and 0.01 ms per token; passes of the drafter: 1 ms and 0.02, then 1 ms and 0.03
    per token.
    """
    budget, drafts = 64, 3

    def made(slots: int, parallel: bool) -> Any:
        passes = program(budget + 32, 8, 0.02), program(budget + 32, 8, 0.03)
        return _native.Drafter(*passes, slots, parallel)

    for slots, parallel, first, further in (
        (0, False, 4, 2),
        (1, False, 5, 2),
        (0, True, 6, 0),
        (1, True, 7, 0),
    ):
        sim = run_with_drafter(made(slots, parallel), budget, drafts)
        steps = sim.steps()
        lengths = steps["end_ps"] - steps["start_ps"]
        verify = 1 * MS + 4 * MS // 100
        assert lengths[1] == verify + (1 * MS + first * 2 * MS // 100) + further * (
            1 * MS + 3 * MS // 100
        )
        assert lengths[0] == 1 * MS + 40 * MS // 100 + 1 * MS + (
            40 + first - 4
        ) * 2 * MS // 100 + further * (1 * MS + 3 * MS // 100)


def run_with_drafter(drafter: Any, budget: int, drafts: int) -> Any:
    config, group = _native.SchedulerConfig(), _native.GroupConfig()
    config.speculation = speculation(drafts, [0.0] * drafts)
    config.max_num_scheduled_tokens, config.max_num_seqs = budget, 8
    config.kv.num_blocks, config.kv.max_model_len = 100, 1000
    group.drafter = drafter
    spec = _native.GroupSpec(group, config, program(budget, 8, 0.01), record_steps=True)
    sim = simulation([(0, 40, 9)], [spec])
    assert sim.run(10_000)
    return sim


def test_a_reader_of_hidden_states_computes_the_last_cached_block_again() -> None:
    keys = [[1, 2, 3], [1, 2, 3]]
    for drops, cached in ((False, 48), (True, 32)):
        options = Options(caching=True, keys=keys, extra=drafting(2, [0.0] * 2))
        options.extra["kv_drops_last_hit"] = drops
        assert int(run([(0, 60, 2), (20, 60, 2)], options).requests()["cached_tokens"][1]) == cached


@settings(max_examples=40, deadline=None)
@given(
    requests=requests_strategy,
    tokens=st.integers(1, 4),
    rate=st.sampled_from([0.0, 0.5, 1.0]),
    depth=st.sampled_from([1, 2]),
    blocks=st.integers(40, 90),
    caching=st.booleans(),
    seqs=st.integers(1, 8),
    mode=st.sampled_from(
        ["plain", "plain", "stages", "runner V2", "decode only", "prefill first", "padded"]
    ),
)
def test_nothing_is_lost_under_pressure(
    requests: list[tuple[int, int, int]],
    tokens: int,
    rate: float,
    depth: int,
    blocks: int,
    caching: bool,
    seqs: int,
    mode: str,
) -> None:
    """With several batches in flight, too, and with prompts that come with their KV,
    or run alone.
    """
    options = Options(
        blocks=blocks,
        block_size=16,
        max_seqs=seqs,
        budget=64,
        max_model_len=100_000,
        depth=depth,
        caching=caching,
        per_token_ms=0.1,
        extra=drafting(tokens, [rate] * tokens),
        decode_only=mode == "decode only",
    )
    options.extra["prefill_first"] = mode == "prefill first"
    if mode == "padded":
        options.extra["limits"] = _native.StepLimits()
        options.extra["limits"].pads_new_decodes = True
    if mode == "stages":
        options.depth = 1 + 2 * depth
    elif mode == "runner V2":
        options.depth = 2 + depth
        options.extra |= {"async_scheduling": True, "decode_interval": 1 + depth}
    check(requests, options, drafts=tokens)


@pytest.mark.parametrize("depth", [1, 2])
def test_who_starts_with_one_token_keeps_a_step_of_verifications_alike(depth: int) -> None:
    """vLLM 0.33: 1 + 3 tokens beside a verification, of which one counts; in 0.24 one."""
    rows, extra = [(0.0, 8, 12), (2.5, 1, 2)], drafting(3, [0.0] * 3)
    limits = _native.StepLimits()
    limits.pads_new_decodes = True
    plain = run(rows, Options(depth=depth, extra=extra))
    padded = run(rows, Options(depth=depth, extra={**extra, "limits": limits}))
    first = {
        sim: next(step for step in schedule(sim) if 1 in [row for row, _, _ in step])
        for sim in (plain, padded)
    }
    assert [(row, tokens) for row, tokens, _ in first[plain]] == [(0, 4), (1, 1)]
    assert [(row, tokens) for row, tokens, _ in first[padded]] == [(0, 4), (1, 4)]
    assert padded.requests()["emitted_tokens"].tolist() == [12, 2]
    assert (padded.requests()["finish_ps"] == plain.requests()["finish_ps"]).all()


def test_without_room_for_a_verification_it_waits_and_beside_prompts_it_does_not_pad() -> None:
    limits = _native.StepLimits()
    limits.pads_new_decodes = True
    extra = {**drafting(3, [0.0] * 3), "limits": limits}
    rows = [(0.0, 2, 6), (0.0, 2, 6), (2.5, 1, 2)]
    tight = schedule(run(rows, Options(budget=10, extra=extra)))
    first = next(number for number, step in enumerate(tight) if 2 in [row for row, _, _ in step])
    assert all(len(step) == 2 for step in tight[1:first]) and first > 4  # 4 + 4 tokens leave two
    prompts = [(0.0, 40, 3), (0.5, 1, 2)]
    beside = schedule(run(prompts, Options(budget=16, extra=extra)))
    assert (1, 1, 0) in [item for step in beside for item in step]


def test_all_drafts_that_hold_are_proposals() -> None:
    """With everything accepted, what a padded request adds to its first step still gives it one
    token.
    """
    limits = _native.StepLimits()
    limits.pads_new_decodes = True
    extra = {**drafting(3, [1.0] * 3), "limits": limits}
    sim = run([(0.0, 8, 40), (2.5, 1, 9)], Options(extra=extra))
    mine = [tokens for step in schedule(sim) for row, tokens, _ in step if row == 1]
    assert mine == [4, 4, 4] and sim.requests()["emitted_tokens"].tolist() == [40, 9]


def test_with_two_batches_in_flight_a_verification_runs_behind_the_one_that_ends_the_answer() -> (
    None
):
    """The first verification gives all that is left; the second was scheduled before that was
    known.
    """
    sim = run([(0, 1, 3)], Options(depth=2, extra=drafting(1, [1.0])))
    assert schedule(sim) == [[(0, 1, 0)], [(0, 2, 1)], [(0, 2, 3)]]
    assert (
        sim.requests()["emitted_tokens"].tolist() == [3]
        and sim.counters()["drafted_tokens"][0] == 1
    )


def config(**fields: Any) -> SpeculativeConfig:
    return SpeculativeConfig.model_validate(
        {"method": "eagle", "num_speculative_tokens": 3, **fields}
    )


def test_three_ways_to_say_how_many_drafts_hold() -> None:
    def rates(**fields: Any) -> list[float]:
        return list(resolve_speculation(config(**fields), 8).acceptance)

    assert rates(acceptance_rate=0.7) == [0.7] * 3
    assert rates(acceptance_rate=[0.9, 0.5, 0.1]) == [0.9, 0.5, 0.1]
    assert rates(synthetic_acceptance_rates=[0.8, 0.4, 0.4]) == pytest.approx([0.8, 0.5, 1.0])
    assert rates(synthetic_acceptance_rates=[0.8, 0.0, 0.0]) == [0.8, 0.0, 0.0]
    for length in (1.0, 2.0, 2.25, 4.0):
        chances = np.cumprod(rates(synthetic_acceptance_length=length))
        assert 1 + chances.sum() == pytest.approx(length)


def test_batch_sizes_take_the_range_before_a_gap() -> None:
    given = config(
        acceptance_rate=1.0, num_speculative_tokens_per_batch_size=[[1, 2, 9], [5, 6, 1]]
    )
    assert resolve_speculation(given, 8).tokens_by_sequences == (0, 3, 3, 3, 3, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("name", "tp", "queries"),
    [
        ("meta-llama/Llama-3.1-8B", 2, 4), ("deepseek-ai/DeepSeek-V3", 8, 16),
        ("deepseek-ai/DeepSeek-V3.2", 8, 64), ("deepseek-ai/DeepSeek-V3.2", 1, 128),
    ],
)  # fmt: skip
def test_tokens_that_read_the_same_rows_share_tiles(name: str, tp: int, queries: int) -> None:
    """Each token of sparse attention fills whole tiles of 64 rows, since it reads rows
    of its own.
    """
    from llmsim.lowering.program import queries_per_kv_head
    from llmsim.model import Dtypes, Layout, load_model, operators

    ops = operators(load_model(name), Layout(tp, 1), Dtypes())
    op = next(op for op in ops if op.kind == "attention" and op.name != "indexer")
    assert queries_per_kv_head(op) == queries
