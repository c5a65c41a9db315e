"""H2Q-BR: the paper's algorithm in plain Python gives the same batches, and its twin in the
documentation the same bytes; rankings by age; parameters and misuse."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithm_2 import MS
from algorithm_2 import schedule as by_the_paper
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.tiny import Options, built, order_of_first_tokens, preempted, run, schedule
from test_rankings import finished, in_python, loads, outcome, random_load

import llmsim
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "extending" / "rankings.md"
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
APART = ROOT / "cluster_config" / "h100_llama31_8b_pd_2p1d.json"
LIMITS = {"L": 24, "C": 70, "B": 3}


def twin() -> Any:
    """The class of the documentation."""
    (text,) = re.findall(r"```python\n(# h2q_br\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names["H2qBr"]


def random_sessions(seed: int) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Rows (arrival in ps or -1, prompt, answer, session) and successors, in order of arrival."""
    rng = np.random.default_rng(seed)
    rows, following = [], []
    arrivals = np.sort(rng.integers(0, 60, rng.integers(2, 9)))
    for arrival in arrivals.tolist():
        first, said = len(rows), 0
        for number in range(int(rng.integers(1, 6))):
            prompt = said + int(rng.choice([3, 9, 24, 25, 40, 90]))
            answer = int(rng.integers(1, 7))
            rows.append((arrival * MS if number == 0 else -1, prompt, answer, first))
            following.append(len(rows))
            said = prompt + answer
        following[-1] = -1
    return rows, following


def test_500_random_session_sets_give_the_batches_of_the_paper() -> None:
    differ = 0
    for seed in range(500):
        rows, following = random_sessions(seed)
        budget, most = (16, 40, 64)[seed % 3], (2, 3, 6)[seed // 3 % 3]
        options = Options(
            budget=budget, max_seqs=most, next_call=following, blocks=20_000, max_model_len=1000,
            ranking="h2q_br", ranking_parameters=LIMITS,
        )  # fmt: skip
        requests = [(at / MS if at >= 0 else -1, prompt, answer) for at, prompt, answer, _ in rows]
        expected = by_the_paper(rows, following, tuple(LIMITS.values()), budget, most)
        found = schedule(run(requests, options))
        assert found == expected, seed
        plain = schedule(run(requests, replace(options, ranking="")))
        differ += plain != found
    assert differ > 350  # the order matters in most sets


@settings(max_examples=60, deadline=None)
@given(sampled=loads, seed=st.integers(0, 2**32))
def test_the_twin_gives_the_same_schedules(sampled: dict[str, Any], seed: int) -> None:
    """With preemption, chunks, a prefix cache, drafts, cancellations, and two batches in flight."""
    rows, following = random_sessions(seed)
    requests = [(at / MS if at >= 0 else -1, min(n, 200), m) for at, n, m, _ in rows]
    options = replace(random_load(requests, sampled, seed), next_call=following)
    native = replace(options, ranking="h2q_br", ranking_parameters=LIMITS)
    expected = outcome(finished(built(requests, native)))
    assert outcome(finished(built(requests, options, in_python(twin()(**LIMITS))))) == expected


def test_the_twin_gives_the_same_bytes_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"```python\n# h2q_br\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "h2q_twin.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    load = "synthetic:reasoning,n=30,rate=6,template=short:0.7|heavy:0.3"
    for cluster in (CLUSTER, APART):
        both = [
            llmsim.run(
                cluster, load, cost_source="roofline", max_model_len=66_000,
                scheduling_policy=policy,
            )
            for policy in ("h2q_br:B=8", "h2q_twin:H2qBr:B=8", "fcfs")
        ]  # fmt: skip
        native, mine, fcfs = (one.requests.drop(columns="itl_ps") for one in both)
        assert native.equals(mine) and not native.equals(fcfs)
        assert both[0].steps.equals(both[1].steps)
        assert set(both[0].summary["invariants"].values()) == {"ok"}


def test_a_spilled_prompt_is_released_every_other_step() -> None:
    """Budget 10: prompt 1 is cut, goes before the decode once, then waits for a cut to do so again.

    Its first slice is cut behind the decode (9 tokens), which gives it a release (10 tokens).
    """
    requests = [(0.0, 4, 5), (0.5, 40, 1)]
    options = Options(budget=10, ranking="h2q_br", ranking_parameters={"L": 20, "C": 99, "B": 99})
    assert schedule(run(requests, options)) == [
        [(0, 4, 0)],
        [(0, 1, 4), (1, 9, 0)],
        [(1, 10, 9)],
        [(0, 1, 5), (1, 9, 19)],
        [(1, 10, 28)],
        [(0, 1, 6), (1, 2, 38)],
        [(0, 1, 7)],
    ]


def test_liveness_lets_a_long_prompt_overtake_a_short_one() -> None:
    """Row 0 runs alone for five steps, so that a streak of 3 is over and one of 99 is not."""
    requests = [(0.0, 4, 5), (1.0, 40, 1), (2.0, 6, 1)]
    options = Options(max_seqs=1, ranking="h2q_br")
    for streak, order in ((3, [0, 1, 2]), (99, [0, 2, 1])):
        parameters = {"L": 20, "C": 99, "B": streak}
        sim = run(requests, replace(options, ranking_parameters=parameters))
        assert order_of_first_tokens(sim) == order


def test_mlfq_serves_sessions_with_chunks_a_prefix_cache_and_roles() -> None:
    """Every round joins the level of its own prompt."""
    options = {"enable_chunked_prefill": True, "enable_prefix_caching": True}
    for cluster in (CLUSTER, APART):
        result = llmsim.run(
            cluster, "synthetic:reasoning,n=20,rate=4", cost_source="roofline", scheduler="mlfq",
            max_model_len=66_000, check_every_step=True, **options,
        )  # fmt: skip
        assert set(result.summary["invariants"].values()) == {"ok"}
        assert result.summary["sessions"]["completed"] == 20
        assert result.summary["sessions"]["own_hit_tokens"] > 100_000


@pytest.mark.parametrize(
    ("ranking", "parameters", "order"),
    [
        ("slo_age", {}, [0, 1, 3, 2]),
        ("slo_age", {"base": 2, "weight": 3}, [0, 1, 2, 3]),
        ("inverted-slo", {}, [0, 3, 1, 2]),
        ("inverted-slo", {"base": 0}, [0, 3, 2, 1]),
        ("reverse-priority", {}, [0, 2, 1, 3]),
    ],
)
def test_priority_and_age(ranking: str, parameters: dict[str, int], order: list[int]) -> None:
    """One runs at a time; 1, 2 and 3 wait with priorities 0, 1 and 0 since 1, 2 and 3 ms."""
    requests = [(0.0, 4, 9), (1.0, 4, 2), (2.0, 4, 2), (3.0, 4, 2)]
    options = Options(
        max_seqs=1, priority=[0, 0, 1, 0], ranking=ranking, ranking_parameters=parameters
    )
    assert order_of_first_tokens(run(requests, options)) == order


def test_priorities_of_any_size_do_not_overflow() -> None:
    requests = [(0.0, 4, 9), (1.0, 4, 2), (2.0, 4, 2), (3.0, 4, 2)]
    options = Options(
        max_seqs=1, priority=[0, 2**31 - 1, 0, -(2**31)], ranking="slo_age",
        ranking_parameters={"base": 10**9, "weight": 10**6},
    )  # fmt: skip
    assert order_of_first_tokens(run(requests, options)) == [0, 3, 2, 1]


def test_the_last_of_a_ranking_is_preempted() -> None:
    requests = [(0.0, 4, 9), (0.0, 4, 9)]
    options = Options(max_seqs=2, block_size=4, blocks=5, priority=[3, 0])
    assert preempted(run(requests, replace(options, ranking="slo_age")))[0][1] == 0
    assert preempted(run(requests, replace(options, ranking="reverse-priority")))[0][1] == 1


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("h2q_br:4096", 'h2q_br:4096: "4096" is not key=value; an example is h2q_br:L=4096'),
        ("h2q_br:L=", "is not key=value"),
        ("h2q_br:L=1,L=2", '"L" is given twice'),
        ("h2q_br:M=1", 'unknown parameter "M"; h2q_br has L, C, B'),
        ("h2q_br:B=0", "B is '0', but must be an integer from 1 to"),
        ("h2q_br:L=-1", "L is '-1', but must be an integer from 0 to"),
        ("h2q_br:L=4.5", "L is '4.5', but must be an integer"),
        ("h2q_br:L=99999999999999999999", "must be an integer from 0"),
        ("slo_age:base=x", "base is 'x', but must be an integer from 0 to 1000000000"),
        ("reverse-priority:base=1", "reverse-priority has no parameters"),
        ("h2q", '"h2q" (did you mean "h2q_br"?)'),
    ],
)
def test_bad_parameters_are_said(policy: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        llmsim.run(CLUSTER, "synthetic:n=1,rate=1,input=5,output=5", scheduling_policy=policy)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("scheduler", ["orca", "sglang", "mlfq"])
def test_schedulers_that_order_running_requests_themselves_refuse_it(scheduler: str) -> None:
    with pytest.raises(InputError, match=r"its levels|choose another scheduler"):
        llmsim.run(
            CLUSTER, "synthetic:n=1,rate=1,input=5,output=5", scheduler=scheduler,
            scheduling_policy="h2q_br", cost_source="roofline",
        )  # fmt: skip
