"""Whatever the scheduler and the pressure: nothing is lost, every token is accounted for, nobody
waits for nothing.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from package import package_sources
from scheduling.tiny import (
    CUTS_TO_BLOCKS,
    PIPELINED,
    SCHEDULERS,
    WHOLE_PROMPTS,
    Options,
    built,
    most_slots,
    run,
)
from token_balance import token_balance

from llmsim import _native

ROOT = Path(__file__).resolve().parents[2]

requests_strategy = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=25
).map(sorted)

options_strategy = st.fixed_dictionaries(
    {
        "blocks": st.integers(30, 120),
        "block_size": st.sampled_from([1, 4, 16, 32]),
        "max_seqs": st.integers(1, 12),
        "budget": st.sampled_from([16, 64, 256]),
        "caching": st.booleans(),
        "order": st.sampled_from(["FCFS", "PRIORITY", "SHORTEST", "SLACK"]),
        "max_model_len": st.sampled_from([400, 100_000]),
        "decode_only": st.booleans(),
        "depth": st.sampled_from([1, 2]),
        "stages": st.sampled_from([1, 1, 2, 3]),
        "extra": st.fixed_dictionaries({"watermark_blocks": st.integers(0, 5)}),
    }
)


def build_options(
    scheduler: str, sampled: dict[str, Any], requests: list[tuple[int, int, int]], seed: int
) -> Options:
    rng = np.random.default_rng(seed)
    sampled = dict(sampled)
    stages = sampled.pop("stages")
    options = Options(
        scheduler.removesuffix(" prefill first"),
        ttft_target_ms=40,
        prefill_ms_per_token=0.1,
        per_token_ms=0.1,
        **sampled,
    )
    options.extra = dict(options.extra)
    if scheduler.endswith("prefill first"):
        options.extra |= {"prefill_first": True, "reserve_full_isl": bool(rng.random() < 0.5)}
    if options.scheduler == "vllm_v1" and stages > 1:
        ahead = bool(
            rng.random() < 0.5
        )  # asynchronous scheduling, as vLLM's Model Runner V2 has it
        options.depth = stages + ahead
        options.extra |= {"async_scheduling": ahead, "decode_interval": stages if ahead else 1}
    if options.scheduler != "vllm_v1":
        options.depth = stages if options.scheduler in PIPELINED else 1
        options.extra |= {
            "mlfq_starvation_ps": int(rng.choice([10**9, 10**11])),
            "sglang_new_tokens": 64,
        }
        options.extra |= {"mlfq_tokens_per_iteration": 32}
    options.budget = max(options.budget, options.max_seqs)
    if options.scheduler in WHOLE_PROMPTS:
        options.budget = 400  # the longest prompt, and a whole sequence to be computed again
    if options.scheduler in CUTS_TO_BLOCKS:
        options.budget = max(options.budget, options.block_size)
        options.extra |= {
            "tensorrt_llm_capacity_policy": int(rng.integers(2)),
            "tensorrt_llm_chunking_policy": int(rng.integers(2)),
        }
    options.priority = [int(rng.integers(-2, 3)) for _ in requests]
    shared = int(rng.integers(0, 7))
    options.keys = [
        list(range(1, 1 + min(shared, tokens // options.block_size))) for _, tokens, _ in requests
    ]
    return options


def answer_of(options: Options, prompt: int, answer: int) -> int:
    """Tokens that the request gets: SGLang cuts answers two tokens before the model's length. It
    refuses (0) prompts that leave no room for a few tokens, and here what two pages more than the
    request do not hold.
    """
    outlined = options.order != "FCFS" or options.decode_only or options.ranking
    if options.scheduler != "sglang" or outlined or options.budget < options.block_size:
        return answer
    pages = options.blocks - 1
    longest = min(options.max_model_len, pages * options.block_size) - 1
    cut = min(answer, options.max_model_len - 2 - prompt)
    needed = -(-(prompt + cut) // options.block_size) + 2
    return cut if prompt <= longest - 6 and needed <= pages else 0


def check(requests: list[tuple[int, int, int]], options: Options, *, drafts: int = 0) -> None:
    """With `drafts` in each step, those that do not hold are computed as well, and, with two
    batches in flight, a whole verification behind the one that turns out to have ended the answer
    (vLLM drops what it gives).
    """
    asked = requests
    sim = run(asked, options)  # type: ignore[arg-type]
    r, c, steps = sim.requests(), sim.counters(), sim.steps()
    usable = (options.blocks - 1) * options.block_size
    requests = [(a, i, answer_of(options, i, o)) for a, i, o in requests]
    slots = [most_slots(options.scheduler, i, o) for _, i, o in requests]
    fits = np.array([o > 0 and n <= usable for n, (_, _, o) in zip(slots, requests, strict=True)])
    assert (r["status"] == np.where(fits, 3, 4)).all()
    assert (r["emitted_tokens"] == np.where(fits, [o for _, _, o in requests], 0)).all()
    done = r["status"] == 3
    chain = ("arrival_ps", "queued_ps", "scheduled_ps", "first_token_ps", "finish_ps")
    for early, late in pairwise(chain):
        assert (r[early][done] <= r[late][done]).all()
    assert c["finished"][0] == done.sum() and c["running"][0] == c["waiting"][0] == 0
    assert (
        c["free_blocks"][0] == options.blocks - 1
        and c["pool_consistent"].all()
        and not c["idle_with_work"].any()
    )
    assert c["peak_blocks_used"][0] <= options.blocks - 1
    assert (steps["tokens"] <= options.budget).all() and (
        steps["running"] <= options.max_seqs
    ).all()
    assert (steps["sequences"] <= options.max_seqs).all()
    needed = sum(i + o - 1 for (_, i, o), ok in zip(requests, fits, strict=True) if ok)
    cached = int(r["cached_tokens"][done].sum())
    surplus = int(steps["tokens"].sum()) - (needed - cached + int(c["recomputed_tokens"][0]))
    if drafts:
        behind = (options.depth - 1) * len(requests) * (1 + drafts)
        assert 0 <= surplus <= int(c["drafted_tokens"][0]) + behind
    else:
        assert surplus == 0
    assert token_balance(sim, [tokens for _, tokens, _ in requests]) == "ok"
    victims = sim.schedule(0)["preempted_request"]
    assert (np.bincount(victims, minlength=len(requests)) == r["preemptions"]).all()
    assert len(victims) == int(c["preemptions"][0])
    assert int(c["generation_tokens"][0]) == int(r["emitted_tokens"].sum())
    assert int(c["prompt_tokens"][0]) == sum(
        i for (_, i, _), ok in zip(requests, fits, strict=True) if ok
    )
    parts = sim.blame()
    assert (sum(parts.values())[done] == (r["finish_ps"] - r["arrival_ps"])[done]).all()
    assert all((part >= 0).all() for part in parts.values())
    again = run(asked, options).requests()  # type: ignore[arg-type]
    assert all((again[name] == r[name]).all() for name in r)


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, "vllm_v1 prefill first"])
@settings(max_examples=60, deadline=None)
@given(requests=requests_strategy, sampled=options_strategy, seed=st.integers(0, 2**32))
def test_nothing_is_lost_under_any_pressure(
    scheduler: str, requests: list[tuple[int, int, int]], sampled: dict[str, Any], seed: int
) -> None:
    check(requests, build_options(scheduler, sampled, requests, seed))


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, "vllm_v1 prefill first"])
@settings(max_examples=30, deadline=None)
@given(requests=requests_strategy, sampled=options_strategy, seed=st.integers(0, 2**32))
def test_tokens_add_up_between_any_two_events(
    scheduler: str, requests: list[tuple[int, int, int]], sampled: dict[str, Any], seed: int
) -> None:
    """Also of clients that give up: so an interrupted run keeps invariant 5."""
    rng = np.random.default_rng(seed)
    options = build_options(scheduler, sampled, requests, seed)
    if rng.random() < 0.5:
        options.timeout_ms = [float(rng.choice([-1, 5, 60])) for _ in requests]
    sim = built(requests, options)  # type: ignore[arg-type]
    ended = False
    while not ended:
        ended = sim.run(int(rng.integers(1, 40)))
        assert token_balance(sim, [tokens for _, tokens, _ in requests]) == "ok"


@settings(max_examples=150, deadline=None)
@given(
    requests=requests_strategy,
    sampled=options_strategy,
    seed=st.integers(0, 2**32),
    first=st.booleans(),
)
def test_steps_of_calm_sequences_are_those_in_full(
    requests: list[tuple[int, int, int]], sampled: dict[str, Any], seed: int, first: bool
) -> None:
    """Sequences that only count are the same to the bit as all of them scheduled and received in
    full.
    """
    rng = np.random.default_rng(seed)
    options = build_options(
        "vllm_v1 prefill first" if first else "vllm_v1", sampled, requests, seed
    )
    options.extra["limits"] = limits = _native.StepLimits()
    limits.long_prefill_token_threshold = int(rng.choice([0, 0, 8]))
    if rng.random() < 0.4:
        options.timeout_ms = [float(rng.choice([-1, 5, 60])) for _ in requests]
        options.cancel_tokens = [int(rng.choice([-1, 1, 20])) for _ in requests]
    if rng.random() < 0.4 and not options.decode_only:
        options.extra["kv_tables"] = tables = _native.KvTables()
        tables.windows = [
            0,
            *(
                int(rng.choice([2, 5, options.block_size + 1, 100]))
                for _ in range(rng.integers(1, 3))
            ),
        ]
        tables.step_tokens, options.blocks = options.budget, 2 * options.blocks
    calm = run(requests, options)  # type: ignore[arg-type]
    options.extra["disable_fast_path"] = True
    full = run(requests, options)  # type: ignore[arg-type]
    for table in ("requests", "steps", "counters", "blame"):
        one, other = getattr(calm, table)(), getattr(full, table)()
        assert one.keys() == other.keys() and all(
            (one[name] == other[name]).all() for name in one
        ), table
    one, other = calm.schedule(0), full.schedule(0)
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_prompts_first_do_not_trade_memory_with_decodes_for_ever() -> None:
    """Equally urgent requests of one arrival, prompts admitted without room for all of them: found
    by this property.
    """
    rows = """0 143 11, 1 35 59, 1 40 38, 1 190 57, 1 199 55, 1 288 43, 2 50 18, 2 107 18,
        3 188 7, 4 206 2, 14 103 45, 16 133 32, 132 234 28, 157 123 15, 358 120 29, 372 270 21"""
    requests = [(int(a), int(b), int(c)) for a, b, c in (row.split() for row in rows.split(","))]
    options = Options(
        blocks=95,
        block_size=4,
        max_seqs=10,
        budget=16,
        max_model_len=100_000,
        order="PRIORITY",
        per_token_ms=0.1,
        priority=[2, -2, 2, 2, -2, -2, -1, 2, 1, 1, -1, 0, 0, -1, 0, 2],
        extra={"watermark_blocks": 2, "prefill_first": True, "reserve_full_isl": False},
    )
    check(requests, options)
    rows = (
        "0 68 37, 0 172 22, 2 175 7, 2 268 11, 3 232 55, 88 185 46, 337 87 19, 352 150 27, 395 "
        "253 15"
    )
    requests = [(int(a), int(b), int(c)) for a, b, c in (row.split() for row in rows.split(","))]
    options.blocks, options.max_seqs, options.max_model_len = 65, 9, 400
    options.priority, options.extra["watermark_blocks"] = [-1, -1, 0, -2, 0, 2, -1, 2, 2], 5
    check(requests, options)


def test_schedulers_do_not_read_the_oracle() -> None:
    """Invariant 8, in every folder of the core: only stop rules and the KV guard ask for the
    answer's length.
    """
    allowed = {"sequence_table.h", "group.cpp", "vllm_v1.cpp", "batch_scheduler.cpp"}
    allowed |= {"outline.cpp", "sglang.cpp", "srpt.cpp", "tensorrt_llm.cpp"}
    files = [
        p for p in sorted(package_sources("llmsim/native").rglob("*")) if p.suffix in (".h", ".cpp")
    ]
    reads = re.compile(r"(?<!set_)max_tokens\(")
    readers = {path.name for path in files if reads.search(path.read_text(encoding="utf-8"))}
    assert readers == allowed


def test_an_unknown_scheduler_and_too_many_batches_in_flight_are_refused() -> None:
    with pytest.raises(ValueError, match=f"known: {', '.join(sorted(SCHEDULERS))}"):
        run([(0, 1, 1)], Options("sarathy"))
    with pytest.raises(ValueError, match="one batch in flight"):
        run([(0, 1, 1)], Options("static", depth=2))
    with pytest.raises(ValueError, match='has no parameter "level"; it has levels, tokens'):
        run([(0, 1, 1)], Options("mlfq", extra={"mlfq_level": 3}))
    with pytest.raises(ValueError, match="levels is 31, but may be 1 to 30"):
        run([(0, 1, 1)], Options("mlfq", extra={"mlfq_levels": 31}))
