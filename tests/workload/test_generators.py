"""Kinds of synthetic workloads: their rates, their shapes, their content, and that a seed says it
all.
"""

import importlib

import numpy as np
import pytest
from trace_tools import blocks

from llmsim.config.errors import InputError
from llmsim.workload import load_dataset, parse_synthetic
from llmsim.workload.block_content_ids import repeated_prompt_tokens
from llmsim.workload.generators import KINDS

COLUMNS = (
    "arrival_ps",
    "input_tokens",
    "output_tokens",
    "next_call",
    "tool_delay_ps",
    "key_offsets",
    "keys",
)


def make(text, granularity=16, **more):
    return load_dataset("synthetic:" + text, known_models=["m"], granularity=granularity, **more)


def example(kind):
    return importlib.import_module(f"llmsim.workload.generators.{kind}").EXAMPLE.removeprefix(
        "synthetic:"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_examples_run_and_a_seed_says_it_all(kind):
    first, again, other = make(example(kind)), make(example(kind)), make(example(kind) + ",seed=1")
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in COLUMNS)
    assert not np.array_equal(first.output_tokens, other.output_tokens)
    heads = first.arrival_ps[first.arrival_ps >= 0]
    assert (np.diff(heads) >= 0).all()
    assert (first.input_tokens >= 1).all() and (first.output_tokens >= 1).all()
    assert first.models == ("m",)
    assert len(make(example(kind), granularity=0).keys) == 0
    assert np.count_nonzero(make(example(kind), limit=5).arrival_ps >= 0) == 5


def test_diurnal_rate_follows_its_curve():
    arrival_s = (
        make(
            "n=60000,rate=100,arrivals=diurnal:period_s=60:amplitude=0.8,input=1,output=1"
        ).arrival_ps
        / 1e12
    )
    counts, edges = np.histogram(arrival_s % 60, bins=12, range=(0, 60))
    middle = (edges[:-1] + edges[1:]) / 2
    # The mean of the curve over a bin is its middle's value times sinc of half the bin.
    curve = 1 - 0.8 * np.cos(2 * np.pi * middle / 60) * np.sinc(1 / 12)
    assert counts / counts.mean() == pytest.approx(curve, abs=0.06)
    assert arrival_s[-1] == pytest.approx(600, rel=0.02)


def test_spikes_are_where_and_as_high_as_asked():
    arrival_s = (
        make(
            "n=50000,rate=50,arrivals=spike:every_s=20:length_s=2:factor=10,input=1,output=1"
        ).arrival_ps
        / 1e12
    )
    inside = arrival_s % 20 >= 18
    calm, spike = np.count_nonzero(~inside) / 18, np.count_nonzero(inside) / 2
    assert spike / calm == pytest.approx(10, rel=0.05)
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(50 * (1 + 9 * 2 / 20), rel=0.03)


def test_patterns_are_part_of_the_text():
    for arrivals in (
        "diurnal:period_s=60.0:amplitude=0.8",
        "spike:every_s=20.0:length_s=2.0:factor=10.0",
    ):
        spec = parse_synthetic(
            f"synthetic:n=5,rate=3,arrivals={arrivals},input=5,output=pareto:1.5:min=3:max=99"
        )
        assert parse_synthetic(spec.text) == spec


def test_pareto_has_its_tail():
    tokens = make("n=200000,rate=10,input=1,output=pareto:1.5:min=100:max=100000").output_tokens
    assert tokens.min() == 100
    for limit in (200, 1000, 10_000):
        assert np.mean(tokens >= limit) == pytest.approx((100 / limit) ** 1.5, rel=0.15)


def test_few_clients_send_most_and_each_has_its_prefix():
    workload = make(
        "clients,n=40000,rate=50,clients=10,skew=1,cv=2,spread=0.8,input=200,output=50,prefix=64"
    )
    arrival_s = workload.arrival_ps / 1e12
    assert arrival_s[-1] == pytest.approx(800, rel=0.02)
    client = np.array([keys[0] for keys in blocks(workload)])
    _, counts = np.unique(client, return_counts=True)
    expected = 1 / np.arange(1, 11) / (1 / np.arange(1, 11)).sum()
    assert np.sort(counts)[::-1] / 40_000 == pytest.approx(expected, abs=0.01)
    first = client == client[0]
    assert (
        len(set(workload.input_tokens[first].tolist())) == 1
    )  # fixed lengths, times the client's own factor
    assert len(set(workload.input_tokens.tolist())) > 5


def test_one_calm_client_is_a_poisson_process():
    gaps = np.diff(
        make("clients,n=50000,rate=10,clients=1,cv=1,spread=0.1,input=9,output=9").arrival_ps
    )
    assert gaps.std() / gaps.mean() > 0.3  # the client's own burstiness is drawn around cv


def test_agents_repeat_their_session_within_the_context():
    workload = make(
        "agentic,n=60,rate=1,context=20000,system=1000,calls=uniform:5-60", granularity=10
    )
    assert (workload.input_tokens + workload.output_tokens).max() <= 20_000
    found = blocks(workload)
    first = found[0][:100]
    for row, after in enumerate(workload.next_call.tolist()):
        mine = found[row]
        if after >= 0:
            assert (
                workload.input_tokens[after]
                > workload.input_tokens[row] + workload.output_tokens[row]
            )
            assert workload.tool_delay_ps[row] >= 0
        if len(mine) >= 100:
            assert mine[:100] == first  # the system prompt is everybody's
    assert np.count_nonzero(workload.arrival_ps >= 0) == 60


def test_rollout_samples_share_their_prompt_and_nothing_else():
    workload = make("rollout,steps=2,prompts=3,samples=4,every_s=5,input=uniform:100-200")
    assert (workload.arrival_ps / 1e12).tolist() == [0.0] * 12 + [5.0] * 12
    found = blocks(workload)
    for row, keys in enumerate(found):
        assert len(keys) == workload.input_tokens[row] // 16
        for other, theirs in enumerate(found):
            assert (keys == theirs) if row // 4 == other // 4 else not set(keys) & set(theirs)


def test_a_tree_shares_level_by_level():
    workload = make(
        "tree,n=3000,rate=9,depth=2,branch=3,node=64,skew=1,input=32,output=5", granularity=32
    )
    keys = np.array(blocks(workload))
    assert keys.shape == (3000, 4)
    tops, counts = np.unique(keys[:, 1], return_counts=True)
    assert np.sort(counts)[::-1] / 3000 == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.04)
    for top in tops:
        assert len(set(keys[keys[:, 1] == top][:, 3].tolist())) == 3
    assert len(set(keys[:, 3].tolist())) == 9
    assert repeated_prompt_tokens(workload) == 3000 * 128 - 3 * 64 - 9 * 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent,n=5,rate=1", 'unknown kind "agent" (did you mean "agentic"?)'),
        ("agentic,rate=1", '"n" is missing'),
        ("agentic,n=5", '"rate" is missing'),
        ("agentic,n=5,rate=1,branch=2", 'unknown key "branch"'),
        ("n=5,qps=1", 'unknown key "qps" (did you mean "rate"?); known: n, rate, '),
        ("n=5,rate=1,isl=9", 'unknown key "isl" (did you mean "input"?)'),
        ("num_prompts=5", 'unknown key "num_prompts" (did you mean "n"?)'),
        ("clients,n=5,rate=1,input=5,output=5,clients=0", "must be an integer from 1"),
        ("clients,n=5,rate=0,input=5,output=5", "above 0"),
        ("rollout,prompts=2,every_s=1e9,steps=9", "53 days"),
        ("tree,n=2,rate=1,input=1,output=1,node=900000000", "a prompt would have"),
        ("n=5,rate=1,input=5,output=5,arrivals=diurnal:amplitude=2", '"amplitude" is 2'),
        (
            "n=5,rate=1,input=5,output=5,arrivals=spike:every_s=2:length_s=3:factor=2",
            '"length_s" is 3',
        ),
    ],
)
def test_bad_specifications_are_one_sentence(text, said):
    with pytest.raises(InputError) as caught:
        make(text)
    assert said in str(caught.value)
