"""Every feature of a group at once, drawn at random: sessions, closed loops, patience, drafts,
limits, block tables.
"""

import random
from typing import Any

import numpy as np
import pytest
from scheduling.tiny import CUTS_TO_BLOCKS, OTHERS, PIPELINED, WHOLE_PROMPTS, Options, run
from token_balance import token_balance

from llmsim import _native

FINISHED, REJECTED, CANCELLED = 3, 4, 5
RUNS = 40
"""Of each seed's dozen of groups."""
Rows = list[tuple[float, int, int]]


def drawn_rows(draw: random.Random, block_size: int) -> tuple[Rows, list[int]]:
    """Requests in order of arrival, some of them later calls of a session, and who follows whom."""
    n = draw.randint(1, 22)
    prompts = [1, block_size, block_size + 1, draw.randint(1, 300)]
    span = draw.choice([0, 3, 400])
    answers = [1, 2, draw.randint(1, 60)]
    rows: Rows = sorted(
        (float(draw.randint(0, span)), draw.choice(prompts), draw.choice(answers)) for _ in range(n)
    )
    follower = [-1] * n
    for later in draw.sample(range(1, n), n - 1) if draw.random() < 0.4 else []:
        before = draw.randrange(later)
        if follower[before] < 0 and draw.random() < 0.6:
            follower[before], rows[later] = later, (-1.0, *rows[later][1:])
    return rows, follower


def speculation(draw: random.Random, drafts: int) -> Any:
    config, acceptance = _native.SpeculationConfig(), _native.Acceptance()
    config.tokens, config.lookahead = drafts, draw.choice([0, drafts])
    config.proposal_chance = draw.choice([1 << 53, 1 << 51])
    acceptance.chance, acceptance.seed = [1 << 52] * drafts, draw.randrange(1 << 30)
    config.acceptance = acceptance
    return config


def add_vllm(draw: random.Random, options: Options) -> None:
    """What only vLLM's scheduler has."""
    stages, ahead, drafts = (
        draw.choice([1, 1, 1, 2, 3]),
        draw.random() < 0.5,
        draw.choice([0, 0, 0, 1, 3]),
    )
    options.depth = draw.choice([1, 2]) if stages == 1 else stages + ahead
    if stages > 1:
        options.extra |= {"async_scheduling": ahead, "decode_interval": stages if ahead else 1}
    options.extra |= {"prefill_first": draw.random() < 0.2, "reserve_full_isl": draw.random() < 0.7}
    limits = _native.StepLimits()
    limits.long_prefill_token_threshold = draw.choice([0, 0, 8, 50])
    limits.adaptive_threshold, limits.lone_prompt_uncapped = (
        draw.random() < 0.3,
        draw.random() < 0.3,
    )
    limits.prefill_schedule_interval = draw.choice([1, 1, 2, 5])
    limits.max_num_active_seqs = draw.choice([0, 0, 1])
    options.budget = max(options.budget, options.max_seqs * (1 + drafts))
    if drafts:
        options.extra["speculation"] = speculation(draw, drafts)
        limits.pads_new_decodes = draw.random() < 0.4
    options.extra["limits"] = limits
    if not options.decode_only and draw.random() < 0.4:
        tables, size = _native.KvTables(), options.block_size
        windows = [
            draw.choice([2, max(2, size), size + 1, 5 * size, 100])
            for _ in range(draw.randint(1, 2))
        ]
        tables.windows = [
            *([0] if draw.random() < 0.7 else []),
            *windows,
            *([] if options.caching else [-1]),
        ]
        tables.step_tokens = options.budget
        options.extra["kv_tables"], options.blocks = tables, options.blocks * len(tables.windows)


def drawn_options(draw: random.Random, block_size: int, rows: Rows, follower: list[int]) -> Options:
    options = Options(
        draw.choice([*["vllm_v1"] * 5, *OTHERS]),
        blocks=draw.randint(12, 120),
        block_size=block_size,
        max_seqs=draw.randint(1, 12),
        budget=draw.choice([16, 64, 256]),
        max_model_len=draw.choice([40, 400, 100_000]),
        caching=draw.random() < 0.6,
        order=draw.choice(["FCFS", "PRIORITY", "SHORTEST", "SLACK"]),
        ttft_target_ms=40,
        prefill_ms_per_token=0.1,
        per_token_ms=draw.choice([0, 0.1]),
        decode_only=draw.random() < 0.15,
        next_call=follower,
        extra={"watermark_blocks": draw.randint(0, 5)},
    )
    options.budget = max(options.budget, options.max_seqs)
    if options.scheduler == "vllm_v1":
        add_vllm(draw, options)
    else:
        options.depth = draw.choice([1, 2]) if options.scheduler in PIPELINED else 1
        options.extra |= {
            "mlfq_starvation_ps": draw.choice([10**9, 10**11]),
            "sglang_new_tokens": 64,
        }
        options.budget = 400 if options.scheduler in WHOLE_PROMPTS else options.budget
    if options.scheduler in CUTS_TO_BLOCKS:
        options.budget = max(options.budget, block_size)
        options.extra["tensorrt_llm_capacity_policy"] = draw.choice([0, 1])
    options.priority = [draw.randint(-2, 2) for _ in rows]
    shared = draw.randint(0, 7)
    options.keys = [list(range(1, 1 + min(shared, prompt // block_size))) for _, prompt, _ in rows]
    if draw.random() < 0.5:
        options.timeout_ms = [draw.choice([-1, -1, 0.001, 1, 5, 60]) for _ in rows]
        options.cancel_tokens = [draw.choice([0, 0, 1, 2, 20]) for _ in rows]
    if draw.random() < 0.3:
        options.clients, options.think_ms = (
            draw.choice([1, 3]),
            [draw.choice([0, 1, 20]) for _ in rows],
        )
    options.api_latency_ms, options.api_latency_per_token_ms = (
        draw.choice([0, 0, 0.7, 5]),
        draw.choice([0, 0, 0.05]),
    )
    return options


def check_gaps(sim: Any, done: np.ndarray, answers: np.ndarray) -> None:
    """Between tokens: those of each request, and all of them counted."""
    emissions = _native.TokenTimes(sim)
    gaps = [emissions.inter_token_latencies_of(int(row)) for row in np.flatnonzero(done)]
    assert [len(one) + 1 for one in gaps] == answers[done].tolist()
    values, counts = np.unique(np.concatenate([np.empty(0, np.int64), *gaps]), return_counts=True)
    counted = emissions.inter_token_latencies()
    assert np.array_equal(counted[0], values) and np.array_equal(counted[1], counts)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_whatever_meets(seed: int) -> None:
    for number in range(RUNS):
        draw = random.Random(1000 * seed + number)
        block_size = draw.choice([1, 3, 4, 16, 32])
        rows, follower = drawn_rows(draw, block_size)
        options = drawn_options(draw, block_size, rows, follower)
        sim = run(rows, options)
        r, c, blame = sim.requests(), sim.counters(), sim.blame()
        done = r["status"] == FINISHED
        assert np.isin(r["status"], (FINISHED, REJECTED, CANCELLED)).all(), number
        assert c["running"][0] == c["waiting"][0] == 0 and not c["idle_with_work"].any()
        assert c["free_blocks"][0] == options.blocks - 1 and c["pool_consistent"].all()
        answers = np.array(
            [min(answer, options.max_model_len - prompt) for _, prompt, answer in rows]
        )
        assert (r["emitted_tokens"][done] == answers[done]).all()
        end = np.maximum(r["finish_ps"], r["cancelled_ps"])
        assert (sum(blame.values())[end >= 0] == (end - r["arrival_ps"])[end >= 0]).all(), number
        assert all((part >= 0).all() for part in blame.values())
        steps = sim.steps()
        assert (steps["tokens"] <= options.budget).all() and (
            steps["sequences"] <= options.max_seqs
        ).all()
        check_gaps(sim, done, answers)
        assert token_balance(sim, [prompt for _, prompt, _ in rows]) == "ok", number
        if options.scheduler == "vllm_v1":
            options.extra["disable_fast_path"] = True
        again = run(rows, options)
        for table, columns in (
            ("requests", r),
            ("steps", steps),
            ("counters", c),
            ("blame", blame),
        ):
            other = getattr(again, table)()
            assert all((other[name] == columns[name]).all() for name in columns), (table, number)
