"""Synthetic workloads: means, determinism, shared content, the text form, and the
JSONL round trip.
"""

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reference_hasher import ReferenceHasher

from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.jsonl import write_jsonl
from llmsim.workload import columns, generate, load_trace, parse_synthetic
from llmsim.workload.synthetic.distributions import Fixed, LogNormal, Poisson, Uniform, Zipf
from llmsim.workload.synthetic.workload import SyntheticSpec

DATASET = Path(__file__).resolve().parents[2] / "dataset"
SMALL = "synthetic:n=40,rate=10,input=uniform:1-50,output=uniform:1-30,seed=3"
COLUMNS = (
    "arrival_ps",
    "input_tokens",
    "output_tokens",
    "model",
    "next_call",
    "tool_delay_ps",
    "key_offsets",
    "keys",
)


@pytest.fixture(autouse=True)
def reference_hasher(monkeypatch):
    monkeypatch.setattr(columns, "content_hasher", ReferenceHasher)


def make(text: str, **more) -> Workload:
    return generate(parse_synthetic(text), **more)


def gaps_s(arrivals: str, n: int = 200_000):
    return np.diff(make(f"synthetic:n={n},{arrivals},input=1,output=1").arrival_ps) / 1e12


def test_poisson_has_the_asked_rate_and_an_unclipped_tail():
    gaps = gaps_s("rate=10")
    standard_error = 0.1 / np.sqrt(len(gaps))
    assert (
        abs(gaps.mean() - 0.1) < 4 * standard_error
    )  # a tail clipped at three means would be 5 % off
    assert abs(gaps.std() / gaps.mean() - 1) < 0.02
    assert np.mean(gaps > 0.3) == pytest.approx(np.exp(-3), rel=0.05)
    assert gaps.max() > 0.9


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_has_the_asked_rate_and_variation(cv):
    gaps = gaps_s(f"rate=4,arrivals=gamma:cv={cv}")
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02)


def test_fixed_interval_and_bursts_are_exact():
    assert make("synthetic:n=4,rate=8,arrivals=fixed,input=1,output=1").arrival_ps.tolist() == [
        0,
        125 * 10**9,
        250 * 10**9,
        375 * 10**9,
    ]
    at_once = make("synthetic:n=3,rate=inf,input=1,output=1")
    assert at_once.arrival_ps.tolist() == [0, 0, 0]
    burst = make("synthetic:n=5,arrivals=burst:size=2:every_s=1.5,input=1,output=1")
    assert (burst.arrival_ps / 1e12).tolist() == [0, 0, 1.5, 1.5, 3]


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        (LogNormal.with_cv(220, 1.0), 220),
        (LogNormal(150, 0.5), 150),
        (Zipf(1.2, 1, 1000), Zipf(1.2, 1, 1000).mean),
        (Uniform(10, 500), 255),
        (Fixed(7), 7),
    ],
)
def test_lengths_have_the_documented_mean(lengths, mean):
    values = lengths.draw(np.random.Generator(np.random.PCG64(1)), 400_000)
    assert values.dtype == np.int64
    assert values.mean() == pytest.approx(mean, rel=0.01)


def test_lognormal_variation_and_limits():
    values = LogNormal.with_cv(500, 0.7).draw(np.random.Generator(np.random.PCG64(1)), 400_000)
    assert values.std() / values.mean() == pytest.approx(0.7, rel=0.02)
    limited = LogNormal.with_cv(500, 2.0, 100, 900).draw(
        np.random.Generator(np.random.PCG64(1)), 10_000
    )
    assert (limited.min(), limited.max()) == (100, 900)


def test_zipf_probabilities():
    values = Zipf(1.5, 3, 5).draw(np.random.Generator(np.random.PCG64(1)), 100_000)
    weights = np.array([3, 4, 5]) ** -1.5
    assert np.bincount(values)[3:] / len(values) == pytest.approx(weights / weights.sum(), abs=0.01)


def equal(a: Workload, b: Workload) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


def test_same_seed_same_workload_and_streams_are_independent():
    assert equal(make(SMALL), make(SMALL))
    other = make(SMALL.replace("seed=3", "seed=4"))
    assert not np.array_equal(make(SMALL).arrival_ps, other.arrival_ps)
    changed = make(
        SMALL.replace("output=uniform:1-30", "output=zipf:1.1:max=9") + ",prefixes=2:tokens=32"
    )
    assert np.array_equal(changed.arrival_ps, make(SMALL).arrival_ps)
    assert np.array_equal(changed.input_tokens - 32, make(SMALL).input_tokens)


@given(
    limit=st.integers(1, 40),
    extra=st.sampled_from(["", ",calls=uniform:1-4,tool_ms=9,prefixes=3:tokens=40:share=0.5"]),
)
def test_limit_is_the_beginning(limit, extra):
    whole, part = make(SMALL + extra), make(SMALL + extra, limit=limit)
    rows = len(part)
    assert np.count_nonzero(part.arrival_ps >= 0) == limit
    for name in ("arrival_ps", "input_tokens", "output_tokens", "next_call", "tool_delay_ps"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[:rows])


def test_shared_prefixes_are_shared_blocks_only():
    workload = make(
        "synthetic:n=20000,rate=10,input=9,output=5,prefixes=4:tokens=40:share=0.25", granularity=16
    )
    blocks = np.diff(workload.key_offsets)
    assert set(blocks.tolist()) == {0, 2}  # 40 tokens are two full blocks of 16
    assert np.mean(blocks > 0) == pytest.approx(0.25, abs=0.02)
    assert np.array_equal(workload.input_tokens, np.where(blocks > 0, 49, 9))
    first = workload.keys[::2]
    assert sorted(set(first.tolist())) == [1, 3, 5, 7]
    assert np.array_equal(workload.keys[1::2], first + 1)


def test_a_session_repeats_what_was_said():
    workload = make(
        "synthetic:n=30,rate=1,input=uniform:1-60,output=uniform:1-60,calls=uniform:1-5,tool_ms=250",
        granularity=8,
    )
    for row, after in enumerate(workload.next_call.tolist()):
        if after < 0:
            assert workload.tool_delay_ps[row] == 0
            continue
        assert workload.tool_delay_ps[row] == 250 * 10**9
        history = workload.input_tokens[row] + workload.output_tokens[row]
        assert workload.input_tokens[after] > history
        mine = workload.keys[workload.key_offsets[row] : workload.key_offsets[row + 1]]
        assert len(mine) == history // 8
        assert np.array_equal(mine, workload.keys[workload.key_offsets[after] :][: len(mine)])


def same_sharing(a: Workload, b: Workload) -> bool:
    """Whether the keys of `a` are those of `b` under one renaming; `b` may also name blocks that
    nobody shares.
    """
    renamed: dict[int, int] = {}
    for row in range(len(a)):
        mine = a.keys[a.key_offsets[row] : a.key_offsets[row + 1]].tolist()
        theirs = b.keys[b.key_offsets[row] : b.key_offsets[row + 1]].tolist()
        if any(
            renamed.setdefault(key, theirs[block]) != theirs[block]
            for block, key in enumerate(mine)
        ):
            return False
        if set(theirs[len(mine) :]) & set(renamed.values()):
            return False
    return len(set(renamed.values())) == len(renamed)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 99),
    extra=st.sampled_from(
        [
            "",
            ",prefixes=2:tokens=21:share=0.6",
            ",calls=uniform:1-4,tool_ms=uniform:0-9",
            ",calls=3,prefixes=2:tokens=20",
        ]
    ),
    ids=st.booleans(),
    model=st.sampled_from(["", ",model=a|b"]),
)
def test_written_trace_reads_back(tmp_path_factory, seed, extra, ids, model):
    path = tmp_path_factory.mktemp("round") / "t.jsonl"
    workload = make(
        f"synthetic:n=15,rate=10,input=uniform:1-30,output=uniform:1-20,seed={seed}{extra}{model}",
        granularity=4,
    )
    write_jsonl(workload, path, token_ids=ids)
    again = load_trace(path, known_models=[], granularity=4)
    for name in COLUMNS[:-2]:
        if name != "model":
            assert np.array_equal(getattr(again, name), getattr(workload, name)), name
    names = [[one.models[i] if i >= 0 else "" for i in one.model] for one in (again, workload)]
    assert names[0] == names[1]
    assert again.session_id == workload.session_id
    assert again.notes == ()
    if ids:
        assert np.array_equal(
            np.diff(again.key_offsets), (workload.input_tokens + workload.output_tokens) // 4
        )
        assert same_sharing(workload, again)


def test_sessions_written_with_ids_share_at_any_granularity(tmp_path):
    workload = make(
        "synthetic:n=9,rate=10,input=uniform:1-30,output=uniform:1-20,calls=4", granularity=16
    )
    write_jsonl(workload, tmp_path / "t.jsonl", token_ids=True)
    fine = load_trace(tmp_path / "t.jsonl", known_models=[], granularity=1)
    for row, after in enumerate(workload.next_call.tolist()):
        if (
            after >= 0
            and (workload.input_tokens[after] + workload.output_tokens[after]) // 16
            > (workload.input_tokens[row] + workload.output_tokens[row]) // 16
        ):
            mine = fine.keys[fine.key_offsets[row] : fine.key_offsets[row + 1]]
            assert np.array_equal(mine, fine.keys[fine.key_offsets[after] :][: len(mine)])


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        "synthetic:n=5,arrivals=burst:size=2:every_s=0.1,input=lognormal:220,output=lognormal:190:sigma=0.3:max=99",
        "synthetic:n=5,rate=0.3,arrivals=gamma:cv=1.7,input=zipf:1.1:min=3:max=99,output=7,prefixes=3:tokens=9:share=0.7",
        "synthetic:n=5,rate=inf,input=9,output=lognormal:70,seed=3",
        "synthetic:n=5,rate=3,arrivals=fixed,input=9,output=9,calls=zipf:2:max=9,tool_ms=lognormal:70:cv=2:min=0,model=a|b",
    ],
)
def test_text_says_everything(text):
    spec = parse_synthetic(text)
    assert parse_synthetic(spec.text) == spec
    assert equal(generate(spec), generate(parse_synthetic(spec.text)))


BASE = "n=5,rate=1,input=5,output=5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not key=value"),
        ("n=5,rate=1,input=5", '"output" is missing'),
        ("n=5,input=5,output=5", '"rate" is missing'),
        (f"{BASE},seed", "is not key=value"),
        (f"{BASE},n=6", "given twice"),
        (f"{BASE},sed=6", 'did you mean "seed"'),
        (f"{BASE},seed=-1", "must be an integer from 0"),
        (BASE.replace("n=5", "n=0"), "must be an integer from 1"),
        (BASE.replace("n=5", "n=five"), "is five"),
        (BASE.replace("n=5", "n=5:6"), "given twice"),
        (BASE.replace("input=5", "input=lognormal:5:1"), "twice; name the second one, as in"),
        (BASE.replace("rate=1", "rate=1:2"), "given twice"),
        (BASE.replace("input=5", "input=uniform:1-2:max=3"), "given twice"),
        (BASE.replace("rate=1", "rate=0"), "above 0"),
        (BASE.replace("rate=1", "rate=nan"), "above 0"),
        (BASE.replace("rate=1", "rate=-inf"), "above 0"),
        (f"{BASE},arrivals=posson", 'did you mean "poisson"'),
        (f"{BASE},arrivals=gamma", '"cv" is missing'),
        ("n=5,rate=inf,arrivals=fixed,input=1,output=1", "come at once, so leave"),
        (f"{BASE},arrivals=burst:size=2:every_s=1", "leave rate= out"),
        (BASE.replace("input=5", "input=lognorml:5"), 'did you mean "lognormal"'),
        (BASE.replace("input=5", "input=lognormal"), "the value is missing"),
        (BASE.replace("input=5", "input=lognormal:5:cv=0"), '"cv" is 0'),
        (BASE.replace("input=5", "input=lognormal:5:cv=1:sigma=1"), "means nothing"),
        (BASE.replace("input=5", "input=uniform:9-5"), "above"),
        (BASE.replace("input=5", "input=uniform:5:9"), "or give a range, as in uniform:1-100"),
        (BASE.replace("input=5", "input=uniform:9"), "9 is no range; write two lengths, as unif"),
        (BASE.replace("input=5", "input=0"), "must be an integer from 1"),
        (BASE.replace("input=5", "input=zipf:1.1"), '"max" is missing'),
        (BASE.replace("input=5", "input=zipf:1.1:max=100000000"), "at most"),
        (f"{BASE},prefixes=3", '"tokens" is missing'),
        (f"{BASE},prefixes=3:tokens=4:share=1.5", '"share" is 1.5'),
        (f"{BASE},tool_ms=3", 'needs "calls"'),
    ],
)
def test_bad_specifications_are_one_sentence(text, said):
    with pytest.raises(InputError) as caught:
        parse_synthetic("synthetic:" + text)
    assert said in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("synthetic:n=1000,rate=0.0000001,input=1,output=1", "beyond"),
        ("synthetic:n=9,rate=1e-300,input=1,output=1", "beyond"),
        ("synthetic:n=9,rate=1,input=900000000,output=1,calls=3", "a prompt would have"),
        ("synthetic:n=9,rate=1,input=1,output=1,model=unknown", "not served"),
    ],
)
def test_what_a_trace_cannot_hold_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        make(text, known_models=["m"])
    with pytest.raises(InputError, match="serves several"):
        make(SMALL, known_models=["m", "n"])


def test_bundled_traces_are_what_the_generator_makes(tmp_path):
    spec = importlib.util.spec_from_file_location("regenerate", DATASET / "regenerate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.regenerate(tmp_path)
    readme = (DATASET / "README.md").read_text()
    assert {path.name for path in DATASET.glob("*.jsonl")} == set(module.TRACES)
    for name, (specification, _) in module.TRACES.items():
        assert (tmp_path / name).read_bytes() == (DATASET / name).read_bytes()
        assert specification in readme
        assert load_trace(DATASET / name, known_models=["m"], granularity=16).notes == ()


def test_a_hundred_thousand_requests_are_quick():
    spec = SyntheticSpec(100_000, Poisson(10), LogNormal.with_cv(220, 1), LogNormal.with_cv(190, 1))
    generate(replace(spec, n=10))
    start = time.process_time()
    workload = generate(spec)
    assert (
        time.process_time() - start < 0.15 * 3
    )  # measured 0.03 s; three times the budget, for slow machines
    assert workload.input_tokens.mean() == pytest.approx(220, rel=0.01)
