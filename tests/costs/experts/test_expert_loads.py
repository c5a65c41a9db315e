"""Loads of experts: draws have the right sums and shares, placement balances, policies and tables
are checked.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.costs.experts.load_sampling import (
    Placement,
    draw_counts,
    fullest_ratio,
    group_probability,
    in_turn,
    inclusion_probability,
    place,
    rank_loads,
    recorded_counts,
    sampled_table,
    token_axis,
)
from llmsim.costs.experts.routing import ExpertRouting, parse_expert_routing
from llmsim.model import Moe

EXPERTS, TOPK = 32, 4


def layers_of(count: int) -> Moe:
    """Experts of so many layers."""
    return Moe(
        name="moe", repeat=count, experts_total=EXPERTS, experts_local=0, topk=TOPK, moe_inter=0
    )


def popularity(routing: str, layers: int = 1) -> Any:
    return parse_expert_routing(routing).popularity(layers, EXPERTS)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 300),
    st.sampled_from(["RAND", "ZIPF:s=1", "POWER_LAW:alpha=1.2"]),
    st.integers(0, 99),
)
def test_every_token_takes_topk_different_experts(tokens: int, routing: str, seed: int) -> None:
    counts = draw_counts(popularity(routing)[0, 0], TOPK, [tokens], 8, np.random.default_rng(seed))[
        :, 0
    ]
    assert counts.max() <= tokens
    if tokens <= 16:
        assert (counts.sum(axis=1) == tokens * TOPK).all()
    else:  # a draw that gave an expert more than every token was cut
        assert (counts.sum(axis=1) <= tokens * TOPK).all()
        assert counts.sum() >= 0.9 * tokens * TOPK * 8


def test_one_by_one_and_together_agree_in_the_mean() -> None:
    weights = popularity("ZIPF:s=1")[0, 0]
    few = draw_counts(weights, TOPK, [16], 4000, np.random.default_rng(1))[:, 0].mean(axis=0) / 16
    assert np.abs(few - inclusion_probability(weights, TOPK)).max() < 0.03
    assert inclusion_probability(weights, TOPK).sum() == pytest.approx(TOPK)


def test_uniform_draws_touch_as_many_experts_as_expected() -> None:
    counts = draw_counts(popularity("RAND")[0, 0], TOPK, [8], 4000, np.random.default_rng(2))[:, 0]
    expected = EXPERTS * (1 - (1 - TOPK / EXPERTS) ** 8)
    assert (counts > 0).sum(axis=1).mean() == pytest.approx(expected, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0, 1) | st.floats(1e-30, 1e-3), min_size=8, max_size=64).filter(
        lambda one: sum(one) > 1e-20
    ),
    st.integers(1, 64),
)
def test_inclusion_adds_up_to_topk(weights: list[float], topk: int) -> None:
    shares = np.array(weights) / sum(weights)
    inclusion = inclusion_probability(shares, topk)
    assert inclusion.sum() == pytest.approx(min(topk, np.count_nonzero(shares > 1e-100)))
    assert (inclusion <= 1).all() and (np.diff(inclusion[np.argsort(shares)]) >= -1e-12).all()


def next_to(function: Any, towards: float) -> Any:
    """The function, whose last bit is another processor's."""
    return lambda x: np.nextafter(function(x), towards)


def test_the_last_bit_of_exp_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binomial distribution changes its algorithm at n p = 30: here many n p are next to it."""
    even = np.full(128, 1 / 128)

    def counts() -> list[int]:
        found = draw_counts(even, 8, token_axis(2048).tolist(), 8, np.random.default_rng(3))
        return [int(count) for count in found.ravel()]

    here = counts()
    exp, expm1 = np.exp, np.expm1
    for towards in (0.0, 1.0):
        with monkeypatch.context() as other_processor:
            other_processor.setattr(np, "exp", next_to(exp, towards))
            other_processor.setattr(np, "expm1", next_to(expm1, -towards))
            assert counts() == here


def test_more_tokens_never_load_an_expert_less() -> None:
    axis = token_axis(3000).tolist()
    counts = draw_counts(popularity("ZIPF:s=1")[0, 0], TOPK, axis, 16, np.random.default_rng(5))
    assert counts.shape == (16, len(axis), EXPERTS) and (np.diff(counts, axis=1) >= 0).all()
    assert (counts <= np.array(axis)[:, None]).all()
    # Several counts of tokens have the means of one alone.
    alone = draw_counts(popularity("ZIPF:s=1")[0, 0], TOPK, [3000], 200, np.random.default_rng(6))[
        :, 0
    ]
    assert counts[:, -1].mean(axis=0) == pytest.approx(alone.mean(axis=0), rel=0.15)


def test_tokens_choose_groups_before_experts() -> None:
    """Of 8 groups of 4 experts 2: a token's experts are in 2 groups, and as often as their shares
    say.
    """
    weights, groups = popularity("ZIPF:s=1")[0, 0], (8, 2)
    counts = draw_counts(weights, TOPK, [1, 16, 400], 500, np.random.default_rng(7), groups)
    touched = (counts[:, 0].reshape(500, 8, 4).sum(axis=2) > 0).sum(axis=1)
    assert touched.max() == 2 and (counts[:, 0].sum(axis=1) == TOPK).all()
    free = draw_counts(weights, TOPK, [1], 500, np.random.default_rng(7))[:, 0]
    assert (free.reshape(500, 8, 4).sum(axis=2) > 0).sum(axis=1).max() == TOPK
    expected = inclusion_probability(
        weights, TOPK, np.repeat(group_probability(weights, groups), 4)
    )
    assert expected.sum() == pytest.approx(TOPK)
    assert np.abs(counts[:, 1].mean(axis=0) / 16 - expected).max() < 0.06
    assert np.abs(counts[:, 2].mean(axis=0) / 400 - expected).max() < 0.03


def test_round_robin_is_even() -> None:
    assert in_turn(EXPERTS, TOPK, 9).sum() == 36
    assert np.ptp(in_turn(EXPERTS, TOPK, 1001)) <= 1


@pytest.mark.parametrize(
    "placement", [Placement(8), Placement(8, strategy="round_robin"), Placement(8, balanced=True)]
)
def test_every_expert_has_one_place(placement: Placement) -> None:
    expert, copy = place(popularity("ZIPF:s=1")[0, 0], placement)
    assert sorted(expert.tolist()) == list(range(EXPERTS)) and not copy.any()


def test_balancing_and_copies_lower_the_fullest_rank() -> None:
    weights = popularity("ZIPF:s=1")[0, 0]
    counts = draw_counts(weights, TOPK, [2000], 16, np.random.default_rng(3))[:, 0]

    def fullest(placement: Placement) -> float:
        pairs, touched = rank_loads(counts, place(weights, placement), placement.ranks)
        assert (pairs.sum(axis=-1) == counts.sum(axis=-1)).all()
        assert (touched <= (EXPERTS + placement.redundant) / placement.ranks).all()
        return float(pairs.max(axis=-1).mean())

    linear, packed = fullest(Placement(8)), fullest(Placement(8, balanced=True))
    copied = fullest(Placement(8, redundant=8, balanced=True))
    assert linear > packed > copied >= counts.sum(axis=1).mean() / 8


def price(pairs: Any, touched: Any) -> Any:
    return pairs * 2.0 + touched * 100.0


def test_an_even_table_is_the_closed_form() -> None:
    table, fullest = sampled_table(
        parse_expert_routing("RR"), layers_of(3), 512, Placement(8), price, 3
    )
    assert table.ps.shape == (3, 1, len(table.tokens))
    assert table.ps[1, 0, -1] == round((512 * TOPK / 8 * 2.0 + 4 * 100.0) * 1e6)
    assert fullest == 1.0


def test_a_steeper_distribution_takes_longer_and_the_seed_decides() -> None:
    def last(text: str, seed: int = 0) -> Any:
        return sampled_table(
            parse_expert_routing(text, seed), layers_of(4), 512, Placement(8), price, 3
        )[0].ps

    assert (
        last("RR")[..., -1].mean()
        < last("RAND")[..., -1].mean()
        < last("ZIPF:s=0.8")[..., -1].mean()
    )
    assert last("ZIPF:s=0.8")[..., -1].mean() < last("ZIPF:s=1.5")[..., -1].mean()
    assert (last("RAND") == last("RAND")).all() and (last("RAND") != last("RAND", 1)).any()


def test_token_axis_ascends_to_the_end() -> None:
    for last in (1, 2, 3, 100, 4096):
        axis = token_axis(last)
        assert axis[0] == 1 and axis[-1] == last and (np.diff(axis) > 0).all()


def test_a_trace_is_read(tmp_path: Path) -> None:
    counts = np.arange(1, 2 * EXPERTS + 1).reshape(2, EXPERTS)
    np.save(tmp_path / "t.npy", counts)
    (tmp_path / "t.json").write_text(str(counts.tolist()))
    rows = [
        f"{layer},{expert},{counts[layer, expert]}"
        for layer in range(2)
        for expert in range(EXPERTS)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["layer,expert,tokens", *rows]))
    read = [
        parse_expert_routing(f"TRACE:{tmp_path / name}").popularity(2, EXPERTS)
        for name in ("t.npy", "t.json", "t.csv")
    ]
    assert np.allclose(read[0][0], counts / counts.sum(axis=1, keepdims=True))
    assert (read[0] == read[1]).all() and (read[0] == read[2]).all()
    with pytest.raises(InputError, match=r"shape \(1, 2, 32\), but must be \(3, 32\)"):
        parse_expert_routing(f"TRACE:{tmp_path / 't.npy'}").popularity(3, EXPERTS)


def test_a_recording_is_read_line_by_line(tmp_path: Path) -> None:
    steps = np.arange(1, 3 * 2 * EXPERTS + 1).reshape(3, 2, EXPERTS)
    (tmp_path / "t.jsonl").write_text("\n".join(str(step.tolist()) for step in steps))
    routing = parse_expert_routing(f"REPLAY:{tmp_path / 't.jsonl'}")
    assert routing.in_order and not routing.balanced
    assert np.allclose(routing.popularity(2, EXPERTS), steps / steps.sum(axis=2, keepdims=True))
    assert repr(routing) != repr(parse_expert_routing(f"TRACE:{tmp_path / 't.jsonl'}"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
def test_recorded_loads_are_those_of_the_recording(steps: int, topk: int, seed: int) -> None:
    """Shares of a step that really happened come out as they were, at its tokens; at others nothing
    is lost.
    """
    rng, tokens, experts = np.random.default_rng(seed), 24, 12
    chosen = rng.random((steps, tokens, experts)).argsort(axis=2)[..., :topk]
    counts = np.stack([np.bincount(one.ravel(), minlength=experts) for one in chosen])
    shares = counts / counts.sum(axis=1, keepdims=True)
    found = recorded_counts(shares, topk, [1, 7, tokens, 10 * tokens])
    assert (found[:, 2] == counts).all() and (found[:, 3] == 10 * counts).all()
    assert (found.sum(axis=2) == topk * np.array([1, 7, tokens, 10 * tokens])).all()
    assert (found[:, 0] <= 1).all() and (found >= 0).all()


def test_no_expert_gets_more_rows_than_tokens() -> None:
    shares = np.array([[0.9, 0.05, 0.03, 0.02], [1.0, 0.0, 0.0, 0.0]])
    found = recorded_counts(shares, 2, [100])
    assert found[0, 0].tolist() == [100, 50, 30, 20]
    assert found[1, 0].tolist() == [100, 0, 0, 0]  # nobody else was ever chosen


class OneHot:
    """The first expert is twice as popular."""

    calls = 0

    def popularity(self, layers: int, experts: int, seed: int) -> Any:
        OneHot.calls += 1
        array = np.ones((layers, experts))
        array[:, 0] = 2.0
        return array


def test_a_class_is_asked_once() -> None:
    routing = parse_expert_routing(f"{__name__}:OneHot").with_array(3, EXPERTS)
    sampled_table(routing, layers_of(3), 64, Placement(8), price, 3)
    assert OneHot.calls == 1 and routing.popularity(3, EXPERTS)[0, 2, 0] == pytest.approx(
        2 / (EXPERTS + 1)
    )
    assert repr(routing) == repr(parse_expert_routing(f"{__name__}:OneHot").with_array(3, EXPERTS))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ZIPFF", "did you mean"),
        ("ZIPF:alpha=1", 'unknown option "alpha"; ZIPF has s'),
        ("ZIPF:s=-1", "must be a number from 0 to 10"),
        ("RR:s=1", "RR has no options"),
        ("CUSTOM", "name the class"),
        ("TRACE:absent.npy", "cannot be read"),
        ("TRACE:absent.txt", "must be .npy, .json, .jsonl or .csv"),
        ("no_such_module:Class", "there is no module no_such_module"),
        (f"{__name__}:price:skew=1", "expert router"),
    ],
)
def test_bad_policies_say_what_would_work(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_expert_routing(text)


def test_balanced_draws_nothing() -> None:
    assert (
        ExpertRouting().balanced
        and parse_expert_routing("FAST").balanced
        and not parse_expert_routing("RR").balanced
    )


def held_by(ranks: int, groups: tuple[int, int] = (1, 1)) -> Moe:
    return Moe(
        name="moe", repeat=58, experts_total=256, experts_local=256 // ranks, topk=8,
        expert_groups=groups, moe_inter=1, weight_bytes=256 // ranks,
    )  # fmt: skip


def by_touched(pairs: np.ndarray, touched: np.ndarray) -> np.ndarray:
    """A kernel that waits for weights alone, a microsecond for each expert."""
    return touched


def test_the_fullest_rank_of_one_token_has_the_closed_form() -> None:
    """One token takes 8 of 256 experts on 8 ranks of 32; the mean maximum by all its choices."""
    rng = np.random.default_rng(1)
    drawn = np.array([rng.choice(256, 8, replace=False) // 32 for _ in range(20_000)])
    expected = np.mean([np.bincount(one, minlength=8).max() for one in drawn])
    ratio = fullest_ratio(held_by(8), 64, Placement(8), by_touched)
    assert ratio[1] == pytest.approx(expected / 1.0, rel=0.1)


def test_the_fullest_rank_nears_the_others_with_more_tokens() -> None:
    ratio = fullest_ratio(held_by(8), 4096, Placement(8), by_touched)
    assert ratio.min() >= 1.0 and ratio[1] > ratio[8] > ratio[64]
    assert ratio[4096] == pytest.approx(1.0, abs=1e-6), "all experts are touched"


def test_tokens_that_choose_groups_load_ranks_less_evenly() -> None:
    """DeepSeek-V3's four of eight groups are four of eight ranks."""
    free, grouped = (
        fullest_ratio(held_by(8, groups), 64, Placement(8), by_touched)
        for groups in ((1, 1), (8, 4))
    )
    assert grouped[1] > 1.2 * free[1]


def test_more_ranks_wait_longer_for_the_fullest() -> None:
    few, many = (
        fullest_ratio(held_by(ranks), 64, Placement(ranks), by_touched) for ranks in (4, 32)
    )
    assert many[8] > 1.3 * few[8] > 1.3


def test_the_default_waits_for_the_fullest_rank_and_balanced_does_not() -> None:
    default = parse_expert_routing("UNIFORM")
    assert default.balanced and default.waits_for_fullest
    for other in ("BALANCED", "FAST", "RAND", "ZIPF:s=1"):
        assert not parse_expert_routing(other).waits_for_fullest
