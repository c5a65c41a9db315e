"""Content handles: engine blocks share exactly what the trace's blocks say, at any two
block sizes.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_tools import blocks, sharing

from llmsim.config.errors import InfeasibleError
from llmsim.workload import block_content_ids as handles
from llmsim.workload import load_dataset
from llmsim.workload.card import card
from llmsim.workload.formats import read_trace
from llmsim.workload.formats.cloud.mooncake import rows
from llmsim.workload.options import TraceOptions
from llmsim.workload.selection import selected

SAMPLES = Path(__file__).parent / "samples"
id_lists = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 9), st.integers(0, 20)),
    min_size=1,
    max_size=12,
)


def offsets_of(lists):
    return np.cumsum([0, *(len(ids) for ids in lists)])


@given(id_lists, st.sampled_from([1, 1 << 40]))
def test_handles_are_equal_where_all_ids_before_are(cases, scale):
    lists = [[value * scale for value in ids] for ids, *_ in cases]
    flat = np.array([value for ids in lists for value in ids], dtype=np.uint64)
    found = handles.chained(flat, offsets_of(lists))
    named = [tuple(ids[: end + 1]) for ids in lists for end in range(len(ids))]
    assert sharing([found.tolist()]) == sharing([named])
    assert len(found) == 0 or (int(found.min()) >= 1 and int(found.max()) < 1 << 63)


def write(path, cases, block):
    """A trace whose prompts fill all their blocks but a part of the last one."""
    lines = []
    for number, (ids, missing, output) in enumerate(cases):
        tokens = max(len(ids) * block - missing % block, 1)
        lines.append(
            {
                "timestamp": number,
                "input_length": tokens,
                "output_length": output + 1,
                "hash_ids": ids,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@settings(deadline=None, max_examples=150)
@given(id_lists, st.integers(1, 9), st.integers(1, 9))
def test_engine_blocks_share_what_the_blocks_of_the_trace_share(
    tmp_path_factory, cases, block, granularity
):
    path = tmp_path_factory.mktemp("handles") / "t.jsonl"
    write(path, cases, block)
    workload = load_dataset(f"trace:{path},block={block}", known_models=[], granularity=granularity)
    named = []
    for ids, missing, _ in cases:
        tokens = len(ids) * block - missing % block if ids else 0
        ends = range(granularity, tokens + 1, granularity)
        named.append([(tuple(ids[: -(-end // block)]), end) for end in ends])
    assert sharing(blocks(workload)) == sharing(named)


@settings(deadline=None, max_examples=100)
@given(id_lists, st.integers(1, 9))
def test_ideal_hits_are_those_of_a_cache_that_forgets_nothing(tmp_path_factory, cases, block):
    path = tmp_path_factory.mktemp("hits") / "t.jsonl"
    write(path, cases, block)
    workload = read_trace(
        path, known_models=[], granularity=16, options=TraceOptions(block=block)
    ).workload
    cache, hits = set(), 0
    for row, (ids, *_) in enumerate(cases):
        for place in range(len(ids)):
            if tuple(ids[: place + 1]) in cache:
                hits += min(block, int(workload.input_tokens[row]) - place * block)
            cache.add(tuple(ids[: place + 1]))
    assert handles.repeated_prompt_tokens(workload) == hits


@settings(deadline=None, max_examples=60)
@given(id_lists, st.integers(1, 9))
def test_mooncake_written_and_read_again_is_the_same(tmp_path_factory, cases, block):
    folder = tmp_path_factory.mktemp("round")
    write(folder / "a.jsonl", cases, block)
    options = TraceOptions(block=block)
    first = read_trace(
        folder / "a.jsonl", known_models=[], granularity=16, options=options
    ).workload
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(first, block)))
    again = read_trace(
        folder / "b.jsonl", known_models=[], granularity=16, options=options
    ).workload
    for column in ("arrival_ps", "input_tokens", "output_tokens", "next_call", "tool_delay_ps"):
        assert np.array_equal(getattr(again, column), getattr(first, column)), column
    assert handles.repeated_prompt_tokens(again) == handles.repeated_prompt_tokens(first)
    for mine, theirs in zip(blocks(again), blocks(first), strict=True):
        assert len(mine) >= len(theirs)  # what the trace left unnamed gets names that nobody shares


@pytest.mark.parametrize("name", ["mooncake_sessions.jsonl", "weka.jsonl", "bailian.jsonl"])
def test_coarser_blocks_share_no_more(tmp_path, name):
    fine = read_trace(SAMPLES / name, known_models=[], granularity=16)
    block = fine.workload.granularity
    hits = [
        read_and_count(tmp_path, rows(fine.workload, block * factor), block * factor)
        for factor in (1, 2, 4)
    ]
    assert hits[0] == handles.repeated_prompt_tokens(fine.workload)
    assert hits[0] >= hits[1] >= hits[2]


def read_and_count(tmp_path, lines, block):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = TraceOptions(block=block)
    return handles.repeated_prompt_tokens(
        read_trace(tmp_path / "t.jsonl", known_models=[], granularity=16, options=options).workload
    )


def test_hashes_and_numbers_name_the_same_blocks(tmp_path):
    cases = [([1, 2, 3], 5, 1), ([1, 2, 9], 0, 1), ([2, 2], 3, 1)]
    write(tmp_path / "small", cases, 48)
    write(tmp_path / "large", [([value << 50 for value in ids], *rest) for ids, *rest in cases], 48)
    found = [
        load_dataset(f"trace:{tmp_path / n},block=48", known_models=[], granularity=32)
        for n in ("small", "large")
    ]
    assert sharing(blocks(found[0])) == sharing(blocks(found[1]))
    assert int(found[1].keys.max()) < 1 << 63


def test_too_many_keys_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(handles, "MAX_KEYS", 10)
    write(tmp_path / "t", [([1], 0, 1)], 512)
    with pytest.raises(InfeasibleError, match="takes 32 keys"):
        load_dataset(str(tmp_path / "t"), known_models=[], granularity=16)


def test_window_sample_speedup_and_limit():
    text = (
        "synthetic:n=2000,rate=10,input=5,output=5,calls=uniform:1-3,tool_ms=9,prefixes=3:tokens=40"
    )
    whole = load_dataset(text, known_models=[], granularity=16)
    begin = whole.arrival_ps[0]
    cut = selected(whole, TraceOptions(window_s=(50, 60), speedup=2))
    heads = whole.arrival_ps[whole.arrival_ps >= 0] - begin
    inside = heads[(heads >= 50 * 10**12) & (heads < 60 * 10**12)] - 50 * 10**12
    assert np.abs(cut.arrival_ps[cut.arrival_ps >= 0] - inside / 2).max() <= 500
    kept = np.isin(np.array(whole.session_id), cut.session_id)
    assert np.array_equal(cut.input_tokens, whole.input_tokens[kept])
    assert np.array_equal(cut.next_call >= 0, whole.next_call[kept] >= 0)
    assert [b for b, k in zip(blocks(whole), kept, strict=True) if k] == blocks(cut)
    sampled = selected(whole, TraceOptions(sample=0.25, seed=7))
    assert 400 < np.count_nonzero(sampled.arrival_ps >= 0) < 600
    assert np.array_equal(
        sampled.arrival_ps, selected(whole, TraceOptions(sample=0.25, seed=7)).arrival_ps
    )
    assert np.count_nonzero(selected(whole, TraceOptions(limit=7)).arrival_ps >= 0) == 7
    poisson = selected(whole, TraceOptions(rate=50.0))
    assert np.diff(poisson.arrival_ps[poisson.arrival_ps >= 0]).mean() / 1e12 == pytest.approx(
        0.02, rel=0.1
    )


def test_card_of_a_known_workload():
    text = "synthetic:n=4000,arrivals=gamma:cv=3,rate=20,input=uniform:1-99,output=fixed:7"
    made = card(load_dataset(text, known_models=[], granularity=16), "synthetic", max_model_len=50)
    assert made["rate_per_s"] == pytest.approx(20, rel=0.15)
    assert made["interarrival_cv"] == pytest.approx(3, rel=0.1)
    assert made["longest_context_tokens"] == 106
    assert made["requests_beyond_max_model_len"] == pytest.approx(4000 * 56 / 99, rel=0.1)
    assert made["ideal_prefix_hit_ratio"] is None
