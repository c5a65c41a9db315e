"""Drafts with SGLang's scheduler: what steps hold, what memory decodes reserve, what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import Options, run, schedule
from token_balance import assert_nothing_is_lost, token_balance

from llmsim import InputError, _native
from llmsim import run as simulate
from llmsim.lowering.scheduler import acceptance

CLUSTER = "cluster_config/h100_llama31_8b.json"
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.5]}


def options(rates: list[float], **fields: Any) -> Options:
    """A group of SGLang's scheduler whose drafts hold by these chances."""
    native = _native.SpeculationConfig()
    native.tokens, native.acceptance = len(rates), acceptance(rates)
    extra = {"speculation": native, **fields.pop("extra", {})}
    return Options("sglang", block_size=fields.pop("block_size", 1), extra=extra, **fields)


@pytest.mark.parametrize("depth", [1, 2])
def test_if_no_draft_holds_every_step_gives_one_token(depth: int) -> None:
    sim = run([(0, 40, 20)], options([0.0] * 3, depth=depth))
    steps = schedule(sim)
    assert [tokens for ((_, tokens, _),) in steps] == [40] + [4] * 19
    assert [before for ((_, _, before),) in steps] == [0, *range(40, 59)]
    assert sim.counters()["discarded_tokens"][0] == 3 * 19
    assert token_balance(sim, [40]) == "ok"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_if_all_drafts_hold_a_step_gives_them_and_one_more(drafts: int, depth: int) -> None:
    sim = run([(0, 40, 31)], options([1.0] * drafts, depth=depth))
    verifications = -(-30 // (drafts + 1))
    assert sim.counters()["verifications"][0] == verifications
    assert sim.requests()["emitted_tokens"][0] == 31
    befores = [before for ((_, _, before),) in schedule(sim)][1 : 1 + verifications]
    assert befores == list(range(40, 40 + verifications * (drafts + 1), drafts + 1))


def test_a_decode_reserves_slots_for_two_steps() -> None:
    """Of four verified tokens each, behind 41 known ones; branches take more."""
    for parameters, slots in (({}, 8), ({"sglang_eagle_topk": 4, "sglang_draft_tokens": 7}, 24)):
        sim = run([(0, 40, 20)], options([0.0] * 3, extra=parameters))
        free = sim.schedule(0)["free_blocks"]
        assert free[1] == 1000 - 40 - slots
        assert free[2] == 1000 - 41 - slots


def test_cached_prefixes_end_where_the_next_token_is_known_with_eagle() -> None:
    """A page counts with the token behind it, so that a repeated prompt of four pages finds three
    and its own last token is computed anyway.
    """
    for drops, cached in ((False, 48), (True, 32)):
        asked = options([0.0] * 2, block_size=16, caching=True, keys=[[1, 2, 3], [1, 2, 3]])
        asked.extra |= {"kv_drops_last_hit": drops}
        sim = run([(0, 50, 3), (100, 50, 3)], asked)
        assert sim.requests()["cached_tokens"].tolist() == [0, cached]


@settings(max_examples=60)
@given(
    requests_strategy,
    st.sampled_from([1, 16]),
    st.integers(260, 700),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]],
    page: int,
    tokens: int,
    rates: list[float],
    caching: bool,
    depth: int,
    mixed: bool,
) -> None:
    asked = options(
        rates,
        block_size=page,
        blocks=tokens // page + 1,
        depth=depth,
        caching=caching,
        max_seqs=6,
        extra={"sglang_mixed_chunk": int(mixed), "sglang_new_tokens": 8},
    )
    sim = run(requests, asked)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, asked.blocks, requests)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"sglang_eagle_topk": 4}, "sglang_draft_tokens is 0; give more tokens than the 3"),
        ({"sglang_draft_tokens": 9}, "are verified in 4 tokens"),
        ({"speculative_config": EAGLE | {"parallel_drafting": True}}, "has parallel_drafting"),
        (
            {"speculative_config": EAGLE | {"method": "ngram", "proposal_rate": 0.5}},
            "has proposal_rate",
        ),
        ({"skip_prefill": True}, "does not run together with pp_size"),
        ({"scheduling_policy": "sjf"}, "does not run together with pp_size"),
    ],
)
def test_what_does_not_go_with_them_is_refused(engine: dict[str, Any], words: str) -> None:
    asked = {"scheduler": "sglang", "speculative_config": EAGLE} | engine
    with pytest.raises(InputError, match=words):
        simulate(CLUSTER, "synthetic:n=3,rate=1,input=20,output=20,seed=1", **asked)


def test_branches_cost_more_and_hold_as_much() -> None:
    trace = "synthetic:n=20,rate=4,input=200,output=60,seed=1"
    asked = {"scheduler": "sglang", "speculative_config": EAGLE}
    chain = simulate(CLUSTER, trace, **asked)
    tree = simulate(CLUSTER, trace, sglang_eagle_topk=4, sglang_draft_tokens=16, **asked)
    assert chain.summary["speculation"]["drafted_tokens"] > 0
    decoding = [
        (one.requests["finish_ps"] - one.requests["first_token_ps"]).mean() for one in (chain, tree)
    ]
    assert decoding[1] > decoding[0]
