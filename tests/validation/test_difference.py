"""`llmsim diff` finds planted changes, raises few false alarms, and gates by rules."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.cli import main
from llmsim.cli.commands.answers.diff import _table
from llmsim.config.errors import InputError
from llmsim.validation.compare.difference import Difference, SeveralPerRequest, differences
from llmsim.validation.compare.given import given_differently
from llmsim.validation.compare.rules import parse_rule
from llmsim.validation.logs.pairing import Pairs
from llmsim.validation.logs.recording import Recording, counts_of

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_multi_instance.json"
LOAD = "synthetic:n=200,rate=20,input=lognormal:300,output=lognormal:100,seed=5"


def correlated(rng: np.random.Generator, count: int) -> Any:
    """Log-normal factors of which neighbours resemble each other, as requests of one queue do."""
    noise = rng.normal(size=count)
    for row in range(1, count):
        noise[row] = 0.8 * noise[row - 1] + 0.6 * noise[row]
    return np.exp(0.2 * noise)


def recording(ttft_s: Any, latency_s: Any) -> Recording:
    count = len(ttft_s)
    return Recording(
        source="made",
        kind="made",
        request_id=tuple(map(str, range(count))),
        arrival_s=np.arange(count) * 0.1,
        ttft_s=ttft_s,
        latency_s=latency_s,
        input_tokens=np.full(count, 100),
        output_tokens=np.full(count, 50),
    )


def whole_pair(a: Recording, b: Recording) -> Pairs:
    """Two runs that finished the same requests."""
    return Pairs(a, b, (), (a, b))


def made_pair(seed: int, change: float, own_noise: float) -> Pairs:
    """Two runs of one load: they share its requests, and each has noise of its own."""
    rng = np.random.default_rng(seed)
    count = 400
    load, base = correlated(rng, count), 0.05 * correlated(rng, count)
    runs = []
    for factor in (1.0, 1.0 + change):
        own = correlated(rng, count) ** own_noise
        runs.append(recording(base * load * own * factor, (base * load + 1.0) * own * factor))
    return whole_pair(runs[0], runs[1])


def test_few_false_alarms_without_a_change() -> None:
    alarms = [
        any(one.significant for one in differences([made_pair(seed, 0.0, 0.2)]).values())
        for seed in range(80)
    ]
    assert sum(alarms) <= 9  # 4 expected at 5 %; more than 9 once in a hundred such tests


def test_a_change_of_two_percent_is_found() -> None:
    found = [differences([made_pair(seed, 0.02, 0.02)]) for seed in range(30)]
    assert sum(bool(one["mean_ttft_ms"].significant) for one in found) >= 29
    deltas = [one["mean_ttft_ms"].delta_pct or 0.0 for one in found]
    assert np.mean(deltas) == pytest.approx(2, abs=0.5)


def test_several_seeds_judge_throughput_too() -> None:
    pairs = [made_pair(seed, 0.05, 0.02) for seed in range(8)]
    found = differences(pairs)
    assert found["mean_e2el_ms"].significant
    assert found["duration"].p is not None
    assert differences(pairs[:1])["duration"].significant is None


@pytest.mark.parametrize("change", [-0.9, -0.3, 1.5])
def test_intervals_hold_the_change_as_often_as_they_say(change: float) -> None:
    """The wide noise of the runs would take a symmetric interval below -100 %."""
    names = ("mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms")
    found = [differences([made_pair(seed, change, 2.0)], alpha=0.1) for seed in range(60)]
    ends = [one[name].ci or (0.0, 0.0) for one in found for name in names]
    assert all(-100 < low < high for low, high in ends)
    inside = [low <= 100 * change <= high for low, high in ends]
    assert 0.80 <= np.mean(inside) <= 0.97  # 0.9 expected of 60 independent pairs


def test_few_seeds_with_much_noise_stay_above_minus_100_percent() -> None:
    pairs = [made_pair(seed, -0.5, 6.0) for seed in range(3)]
    for alpha in (0.05, 1e-9):
        for one in differences(pairs, alpha).values():
            low, high = one.ci or (0.0, 0.0)
            assert -100 <= low <= (one.delta_pct or 0.0) <= high < float("inf")


def test_times_of_zero_have_an_interval_too() -> None:
    pair = made_pair(1, 0.0, 0.0)
    before, after = pair.real, pair.simulated
    ends = recording(np.where(np.arange(400) < 390, 0.0, 0.05), after.latency_s)
    found = differences([whole_pair(before, ends)])
    assert found["median_ttft_ms"].delta_pct == -100
    low, high = found["p99_ttft_ms"].ci or (0.0, 0.0)
    assert -100 <= low < high


def test_equal_runs_do_not_differ() -> None:
    one = made_pair(1, 0.0, 0.0)
    for difference in differences([one]).values():
        assert difference.significant is False
        assert (difference.delta_pct, difference.ci, difference.p) == (0.0, (0.0, 0.0), 1.0)


def first_requests(count: int, factor: float) -> Pairs:
    """The same requests, each of which takes `factor` times as long in the second run."""
    ttft_s, latency_s = np.full(count, 0.05), np.full(count, 1.0)
    return whole_pair(recording(ttft_s, latency_s), recording(ttft_s * factor, latency_s * factor))


def test_one_pair_says_nothing_of_chance() -> None:
    for name, one in differences([first_requests(1, 1.8)]).items():
        assert one.ci is None and one.p is None and one.significant is None, name
    for one in differences([first_requests(1, 1.0)]).values():
        assert one.significant is False


@pytest.mark.parametrize(("count", "known"), [(2, False), (4, False), (40, True)])
def test_pairs_that_all_change_alike_have_the_chance_of_a_sign_test(
    count: int, known: bool
) -> None:
    found = differences([first_requests(count, 1.8)])["mean_ttft_ms"]
    assert found.significant is known
    assert found.p == 2.0 ** (1 - count) and found.ci == pytest.approx((80, 80))


def test_seeds_that_all_change_alike_have_the_chance_of_a_sign_test() -> None:
    found = differences([first_requests(40, 1.8)] * 3)["duration"]
    assert found.p == 0.25 and found.significant is False


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, options in (("fast", {}), ("slow", {"max_num_batched_tokens": 128})):
        llmsim.run(CLUSTER, LOAD, cost_source="roofline", **options).save(folder / name)
    return folder


def test_the_command_gates_a_regression(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = str(runs / "fast"), str(runs / "slow")
    assert main(["diff", fast, slow, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    summaries = [
        json.loads((runs / name / "summary.json").read_text()) for name in ("fast", "slow")
    ]
    inter_token = ("mean_itl_ms", "median_itl_ms", "p99_itl_ms")
    for metric in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_e2el_ms", *inter_token):
        for side, summary in zip("ab", summaries, strict=True):
            assert found[metric][side] == pytest.approx(summary[metric], rel=1e-6)
    assert found["mean_ttft_ms"]["significant"] is True
    assert set(found["mean_ttft_ms"]) == {"a", "b", "delta_pct", "ci", "p", "significant"}
    assert main(["diff", fast, slow, "--fail-if", "mean_ttft_ms>+5%"]) == 1
    assert "failed: mean_ttft_ms>+5%" in capsys.readouterr().out
    assert main(["diff", slow, fast, "--fail-if", "mean_ttft_ms>+5%"]) == 0
    assert main(["diff", fast, fast, "--fail-if", "mean_ttft_ms>=+0%"]) == 0
    capsys.readouterr()


def with_gaps(run: Recording, gaps: list[Any]) -> Recording:
    return replace(run, itl_s=np.concatenate(gaps), itl_counts=counts_of(gaps))


def test_times_between_tokens_are_resampled_request_by_request() -> None:
    """A request brings all of its tokens along, as often as it is drawn."""
    rng = np.random.default_rng(3)
    gaps = [rng.exponential(10.0, rng.integers(1, 30)) for _ in range(50)]
    sample = SeveralPerRequest(np.concatenate(gaps), counts_of(gaps))
    rows = rng.integers(0, 50, size=(20, 50))
    for found, drawn in zip(sample.resampled(rows), rows, strict=True):
        pooled = np.concatenate([gaps[row] for row in drawn])
        expected = [pooled.mean(), *np.percentile(pooled, [50, 90, 95, 99])]
        assert found == pytest.approx(expected, rel=1e-12)


def test_times_between_tokens_are_those_of_requests_that_both_runs_have() -> None:
    pair = made_pair(1, 0.0, 0.0)
    rng = np.random.default_rng(5)
    gaps = [rng.exponential(0.01, 1 + row % 9) for row in range(400)]
    slower = [1.5 * one for one in gaps]
    gaps[7], slower[9] = np.empty(0), np.empty(0)
    found = differences([whole_pair(with_gaps(pair.real, gaps), with_gaps(pair.simulated, slower))])
    both = [row for row in range(400) if row not in (7, 9)]
    pooled = 1e3 * np.concatenate([gaps[row] for row in both])
    assert found["mean_itl_ms"].a == pytest.approx(pooled.mean())
    assert found["p99_itl_ms"].a == pytest.approx(np.percentile(pooled, 99))
    assert found["p99_itl_ms"].delta_pct == pytest.approx(50)
    assert found["mean_itl_ms"].significant is True
    assert list(found).index("mean_itl_ms") == list(found).index("p99_tpot_ms") + 1


def test_a_log_without_times_between_tokens_has_no_itl() -> None:
    pair = made_pair(1, 0.0, 0.0)
    gaps = [np.full(3, 0.01)] * 400
    half = whole_pair(with_gaps(pair.real, gaps), pair.simulated)
    assert not any("itl" in name for name in differences([half]))


def test_a_recording_of_some_requests_has_their_times_between_tokens() -> None:
    whole = with_gaps(made_pair(1, 0.0, 0.0).real, [np.full(row % 3, row) for row in range(400)])
    some = whole.rows([5, 3, 2, 1])
    assert some.itl_s is not None and some.itl_s.tolist() == [5, 5, 2, 2, 1]
    assert some.itl_counts is not None and some.itl_counts.tolist() == [2, 0, 2, 1]


def test_the_command_says_what_was_given_differently(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = str(runs / "fast"), str(runs / "slow")
    assert main(["diff", fast, slow]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert said.startswith("Given differently: max_num_batched_tokens (not given) -> 128;")
    assert "engine.max_num_batched_tokens 8192 -> 128" in said
    assert main(["diff", fast, fast]) == 0
    equal = capsys.readouterr().out.splitlines()
    assert equal[1] == "Both runs were given the same."
    assert "No latency of any request differs." in equal
    log = tmp_path / "log.parquet"
    log.write_bytes((runs / "slow" / "requests.parquet").read_bytes())
    assert main(["diff", fast, str(log)]) == 0
    assert "iven differently" not in capsys.readouterr().out


def test_the_command_says_that_runs_had_other_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    for name, requests, tokens in (("short", 4, 20), ("long", 4, 2000), ("one", 1, 20)):
        load = f"synthetic:n={requests},rate=10,input=fixed:{tokens},output=fixed:5,seed=1"
        llmsim.run(cluster, load, cost_source="roofline").save(tmp_path / name)
    short, long, one = (str(tmp_path / name) for name in ("short", "long", "one"))
    assert main(["diff", short, long]) == 0
    said = "note: the prompts of 4 paired requests differ in length: they are not the same work"
    assert said in capsys.readouterr().out.splitlines()
    assert main(["diff", one, long]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "So few requests do not say which differences of latencies are chance." in lines
    assert "No latency of any request differs." not in lines
    assert main(["diff", one, one]) == 0
    assert "paired requests differ" not in capsys.readouterr().out


def layouts(below: float, **node: Any) -> dict[str, Any]:
    instance = {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100"}
    return {
        "link_bw": [450, 450, 50],
        "link_latency": [1000, 1000, 2000],
        "layouts": {
            "many": [{**instance, "count": 2, "tp_size": 1}],
            "wide": [{**instance, "count": 1, "tp_size": 2}],
        },
        "node": {"devices": 2, **node},
        "switch": [{"to": "wide", "when": {"active_share_below": below}}],
    }


def test_what_only_the_cluster_file_says_is_given_differently(tmp_path: Path) -> None:
    """Switches and host memory are no part of the resolved groups; two runs that differ in them
    alone were said to have been given the same.
    """
    load = "synthetic:n=20,rate=20,input=100,output=20,seed=1"
    asked = {
        "early": layouts(0.5),
        "late": layouts(0.4),
        "roomy": layouts(0.5, cpu_mem={"mem_size": 64, "mem_bw": 100, "mem_latency": 0}),
        "never": {**layouts(0.5), "switch": []},
    }
    for name, fields in asked.items():
        llmsim.run(fields, load, cost_source="roofline").save(tmp_path / name)
    early, late, roomy, never = (tmp_path / name for name in asked)
    assert given_differently(early, late) == (
        "Given differently: switch[0].when.active_share_below 0.5 -> 0.4."
    )
    assert given_differently(early, roomy) == (
        "Given differently: node.cpu_mem.mem_size (not given) -> 64; "
        "node.cpu_mem.mem_bw (not given) -> 100; node.cpu_mem.mem_latency (not given) -> 0."
    )
    assert given_differently(never, early) == (
        "Given differently: number of groups 2 -> 3; number of switch 0 -> 1."
    )


def test_a_difference_names_the_groups_that_have_it(tmp_path: Path) -> None:
    def apart(prefill: list[int], decode: list[int]) -> dict[str, Any]:
        instance = {"model_name": "Qwen/Qwen3-0.6B", "hardware": "H100", "enforce_eager": True}
        instances = [
            {**instance, "pd_type": role, "max_num_seqs": most}
            for role, each in (("prefill", prefill), ("decode", decode))
            for most in each
        ]
        return {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": instances}]}

    asked = {
        "base": apart([16], [16, 16]),
        "decode": apart([16], [32, 32]),
        "one": apart([16], [16, 32]),
        "some": apart([32], [16, 32]),
        "all": apart([32], [32, 32]),
        "more": apart([16], [16, 16, 16]),
    }
    for name, fields in asked.items():
        llmsim.run(fields, "synthetic:n=5,rate=5,input=50,output=5", cost_source="roofline").save(
            tmp_path / name
        )
    said = {name: given_differently(tmp_path / "base", tmp_path / name) for name in asked}
    change = "Given differently: engine.max_num_seqs 16 -> 32"
    assert said["base"] == "Both runs were given the same."
    assert said["decode"] == f"{change} (decode)."
    assert said["one"] == f"{change} (group 2)."
    assert said["some"] == f"{change} (groups 0 and 2)."
    assert said["all"] == f"{change}."
    assert said["more"] is not None and "number of decode groups 2 -> 3; number of" in said["more"]


def test_an_option_is_said_once(tmp_path: Path) -> None:
    for policy in ("RR", "LOR"):
        llmsim.run(CLUSTER, LOAD, cost_source="roofline", request_routing_policy=policy).save(
            tmp_path / policy
        )
    assert given_differently(tmp_path / "RR", tmp_path / "LOR") == (
        "Given differently: request_routing_policy RR -> LOR."
    )


def test_intervals_without_zero_that_may_be_chance_are_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        "mean_ttft_ms": Difference(100, 101, (0.1, 1.9), 0.03, False),
        "p99_ttft_ms": Difference(100, 110, (8.0, 12.0), 0.0, True),
    }
    pair = made_pair(1, 0.0, 0.0)
    assert "An interval without 0 may be chance" in _table(found, [pair], [], None)
    del found["mean_ttft_ms"]
    assert "An interval without 0" not in _table(found, [pair], [], None)


def test_folders_of_runs_are_paired_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, policy in (("a", "RAND"), ("b", "LOR")):
        for seed in range(3):
            result = llmsim.run(
                CLUSTER, LOAD, cost_source="roofline", seed=seed, request_routing_policy=policy
            )
            result.save(tmp_path / side / f"seed{seed}")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "in 3 pairs of runs" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b" / "seed0")]) == 2
    assert "holds 3 runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "difference", "fails"),
    [
        ("m>+5%", Difference(100, 106, None, 0.0, True), True),
        ("m>+5%", Difference(100, 104, None, 0.0, True), False),
        ("m>+5%", Difference(100, 106, None, 0.5, False), False),
        ("m>=+6%", Difference(100, 106, None, 0.0, True), True),
        ("m<-5%", Difference(100, 90, None, 0.0, True), True),
        ("m > +3", Difference(1, 5, None, None, None), True),
        ("m>200", Difference(100, 201, None, 0.5, False), True),
        ("m<200", Difference(100, 201, None, 0.5, False), False),
        ("m>+5%", Difference(0, 1, None, None, None), True),
    ],
)
def test_rules(text: str, difference: Difference, fails: bool) -> None:
    found = {"m": difference}
    assert parse_rule(text, found).fails(found) is fails


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("p99>+5%", "there is no metric p99"), ("m>>5", "is no rule"), ("m>5x", "is no rule")],
)
def test_bad_rules_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_rule(text, {"m": Difference(1, 1, None, None)})


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path / "no"), str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["diff", str(tmp_path), str(tmp_path), "--alpha", "2"]) == 2
    assert "--alpha is 2; it must be between 0 and 1" in capsys.readouterr().err


def test_values_that_begin_alike_are_shown_where_they_differ(tmp_path: Path) -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    for seed in (1, 2):
        load = f"synthetic:n=5,rate=12,input=lognormal:600,output=lognormal:150,seed={seed}"
        llmsim.run(cluster, load, cost_source="roofline").save(tmp_path / str(seed))
    said = given_differently(tmp_path / "1", tmp_path / "2")
    assert said == "Given differently: dataset ...al:150,seed=1 -> ...al:150,seed=2."


def test_a_rule_that_chance_passes_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other draws of the load: the p99 differs, and nobody knows whether by more than chance."""
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    for seed in (1, 2):
        load = f"synthetic:n=60,rate=12,input=lognormal:600,output=lognormal:150,seed={seed}"
        llmsim.run(cluster, load, cost_source="roofline").save(tmp_path / str(seed))
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    for rule in ("p99_e2el_ms>+0.001%", "p99_e2el_ms<-0.001%"):
        assert main(["diff", first, second, "--fail-if", rule]) == 0
    said = capsys.readouterr().out
    assert said.count("which may be chance") == 1 and "passed: p99_e2el_ms" in said
