"""The log doctor names an option that was withheld, and is silent where a constant explains."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from made_logs import CLUSTER, rows_of, run_arguments, simulate, write_engine_log

import llmsim
from llmsim.api import trials
from llmsim.api.cluster import Cluster
from llmsim.api.logs import fitted_constants
from llmsim.api.preparation.prepare import prepare
from llmsim.api.trials import Trial
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.lowering.adjust.calibration import calibration_of
from llmsim.validation.fit.doctor import Diagnosis
from llmsim.validation.fit.suspects import answers_at_once, tokens_at_once
from llmsim.validation.logs.recording import Recording

BUSY = "synthetic:n=60,rate=12,input=lognormal:200,output=lognormal:150,seed=5"
LIGHT = "synthetic:n=40,rate=4,input=lognormal:200,output=lognormal:100,seed=5"
FULL = "synthetic:n=60,rate=20,input=lognormal:600,output=lognormal:150,seed=5"
ROOT = Path(__file__).resolve().parents[2]


def trial_of(trace: str, *options: object, cluster: Path = CLUSTER) -> Trial:
    settings = checked_options(run_arguments(*options, dataset=trace, cluster=cluster))
    return Trial(Cluster.load(cluster), trace, settings)


def log_of(trace: str, *hidden: object, noise: float = 0.0, **constants: float) -> Recording:
    """What a server with hidden options, constants of its own and noise in its times writes."""
    calibration = calibration_of("H100", "x", constants) if constants else None
    log = trial_of(trace, *hidden).recording(calibration)
    random = np.random.default_rng(1)
    answer_s = (log.latency_s - log.ttft_s) * np.exp(random.normal(0.0, noise, len(log)))
    ttft_s = log.ttft_s + np.minimum(log.ttft_s, 0.1) * random.normal(0.0, 2 * noise, len(log))
    return dataclasses.replace(log, ttft_s=ttft_s, latency_s=ttft_s + answer_s)


def diagnosis(trace: str, *hidden: str, constants: float = float("inf")) -> Diagnosis | None:
    return trial_of(trace).diagnosis(log_of(trace, *hidden), 0.0, constants)


@pytest.mark.parametrize(
    ("trace", "hidden", "option", "value"),
    [
        (BUSY, ("--max-num-seqs", "8"), "max_num_seqs", 8),
        (LIGHT, ("--no-async-scheduling",), "async_scheduling", False),
        (FULL, ("--num-gpu-blocks-override", "500"), "num_gpu_blocks_override", 500),
    ],
)
def test_a_withheld_option_is_named(
    trace: str, hidden: tuple[str, ...], option: str, value: int
) -> None:
    found = diagnosis(trace, *hidden)
    assert found is not None and found.suspect.option == option
    assert found.suspect.value == pytest.approx(value, rel=0.1)
    assert f"{option} " in found.finding.sentence and found.finding.unsound


def test_what_agrees_or_is_explained_by_a_constant_has_no_diagnosis() -> None:
    assert diagnosis(LIGHT) is None
    assert diagnosis(BUSY, "--max-num-seqs", "8", constants=0.1) is None


def test_tokens_that_are_held_at_once() -> None:
    most, usual, near = tokens_at_once(log_of(FULL, "--num-gpu-blocks-override", "500"))
    assert most == pytest.approx(500 * 16, rel=0.1) and usual <= most and near > 0.1


SLOWER = "synthetic:n=100,rate=40,input=lognormal:300,output=lognormal:120,seed=8"
PROMPTS = "synthetic:n=80,rate=7,input=lognormal:3000:sigma=0.5,output=lognormal:50,seed=5"
SHARED = (
    "synthetic:n=100,rate=10,input=lognormal:300,output=lognormal:60,"
    "prefixes=4:tokens=2000:share=0.9,seed=5"
)


@pytest.mark.parametrize(
    ("trace", "hidden", "option"),
    [
        (SLOWER, ("--max-num-seqs", "24"), "max_num_seqs"),
        (SLOWER, ("--num-gpu-blocks-override", "500"), "num_gpu_blocks_override"),
        (PROMPTS, ("--max-num-batched-tokens", "1024"), "max_num_batched_tokens"),
        (SHARED, ("--no-enable-prefix-caching",), "enable_prefix_caching"),
        (LIGHT, ("--enforce-eager",), "enforce_eager"),
    ],
)
def test_options_are_named_on_a_machine_that_is_slower_than_its_tables(
    trace: str, hidden: tuple[str, ...], option: str
) -> None:
    found = trial_of(trace).diagnosis(log_of(trace, *hidden, noise=0.015, time_factor=1.06), 0.0)
    assert found is not None and found.suspect.option == option
    told_by_steps = option != "enforce_eager"  # whose steps take the host's time, not the device's
    assert found.time_factor == pytest.approx(1.06, abs=0.04) or not told_by_steps


@pytest.mark.parametrize("trace", [SLOWER, PROMPTS, SHARED, LIGHT])
@pytest.mark.parametrize("constants", [{"time_factor": 1.2}, {"host_gap_ns": 1.5e6}])
def test_no_option_is_accused_where_the_machine_differs(
    trace: str, constants: dict[str, float]
) -> None:
    assert trial_of(trace).diagnosis(log_of(trace, noise=0.015, **constants), 0.0) is None


def test_a_client_that_adds_some_milliseconds_is_no_option() -> None:
    log = log_of(LIGHT)
    late = dataclasses.replace(log, ttft_s=log.ttft_s + 0.015, latency_s=log.latency_s + 0.015)
    assert trial_of(LIGHT).diagnosis(late, 0.0) is None


def test_a_plateau_is_seen_through_the_noise_of_a_clients_stamps() -> None:
    burst = "synthetic:n=120,rate=400,input=fixed:300,output=fixed:60,seed=4"
    log = log_of(burst, "--max-num-seqs", "32")
    shaken_s = np.random.default_rng(1).normal(0.0, 0.1, len(log))
    counts = answers_at_once(dataclasses.replace(log, latency_s=log.latency_s + shaken_s))
    assert counts.most > 32 and counts.level == pytest.approx(32, abs=2)
    assert counts.share > 0.1


def test_options_that_the_cluster_file_gives_are_doubted_too(tmp_path: Path) -> None:
    fields = json.loads(CLUSTER.read_text(encoding="utf-8"))
    fields["nodes"][0]["instances"][0]["max_num_seqs"] = 4
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    found = trial_of(BUSY, cluster=path).diagnosis(log_of(BUSY), 0.0)
    assert found is not None and found.suspect.option == "max_num_seqs"


def test_a_limit_of_each_instance_is_named_for_several(tmp_path: Path) -> None:
    cluster = ROOT / "cluster_config" / "h100_multi_instance.json"
    several = trial_of(SLOWER, cluster=cluster)
    engines = len(several.lowered().groups)
    log = trial_of(SLOWER, "--max-num-seqs", "6", cluster=cluster).recording(None)
    found = several.diagnosis(log, 0.0)
    assert engines > 1 and found is not None
    assert (found.suspect.option, found.suspect.value) == ("max_num_seqs", 6)


def test_twice_as_many_devices_are_named_and_not_an_absurd_factor(tmp_path: Path) -> None:
    fields = json.loads(CLUSTER.read_text(encoding="utf-8"))
    fields["nodes"][0]["instances"][0] |= {"num_npus": 2, "tp_size": 2}
    path = tmp_path / "tp2.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    found = trial_of(BUSY).diagnosis(trial_of(BUSY, cluster=path).recording(None), 0.0)
    assert found is not None and found.suspect.option == "tensor_parallel_size"
    assert found.suspect.value == 2


def test_a_second_instance_is_not_tried_where_there_are_several() -> None:
    pair = ROOT / "cluster_config" / "h100_llama31_8b_pd.json"
    with pytest.raises(InputError, match="one instance on one node"):
        trial_of(LIGHT, cluster=pair).recording(None, {"num_instances": 2})


def withheld(tmp_path: Path, *hidden: object) -> Path:
    """The log of a server whose max_num_seqs nobody knows, and beside it the run without."""
    simulate(*hidden, "--output", tmp_path / "real.csv", dataset=BUSY)
    simulate("--run-dir", tmp_path / "run", dataset=BUSY)
    return write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")


def test_validate_names_the_option_where_a_run_folder_can_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = withheld(tmp_path, "--max-num-seqs", "8")
    capsys.readouterr()
    assert main(["validate", str(log), str(tmp_path / "run"), "--skip-seconds", "0"]) == 0
    said = capsys.readouterr().out
    assert "**unsound** max_num_seqs 8 would explain the log" in said
    assert "not sound" in said


def test_validate_names_arrivals_that_are_not_those_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = BUSY.replace("rate=12", "rate=60")
    simulate("--output", tmp_path / "real.csv", dataset=other)
    simulate("--run-dir", tmp_path / "run", dataset=BUSY)
    log = write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")
    capsys.readouterr()
    assert main(["validate", str(log), str(tmp_path / "run"), "--skip-seconds", "0"]) == 0
    assert "the log's arrivals (--arrivals) would explain the log" in capsys.readouterr().out


def test_python_validates_and_calibrates_with_the_doctor(tmp_path: Path) -> None:
    log = withheld(tmp_path, "--max-num-seqs", "8")
    result = llmsim.run(CLUSTER, BUSY, cost_source="roofline")
    said = [one.sentence for one in llmsim.validate(log, result, skip_seconds=0).findings]
    assert any("max_num_seqs 8 would explain" in one for one in said)
    with pytest.raises(InfeasibleError, match="max_num_seqs 8 would explain"):
        llmsim.calibrate(log, CLUSTER, BUSY, skip_seconds=0, cost_source="roofline")


def test_large_logs_are_compared_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = withheld(tmp_path, "--max-num-seqs", "8")
    monkeypatch.setattr(trials, "MOST", 59)
    capsys.readouterr()
    assert main(["validate", str(log), str(tmp_path / "run"), "--skip-seconds", "0"]) == 0
    said = capsys.readouterr().out
    assert "the log doctor was left out, as it would simulate 60 requests" in said
    assert "would explain" not in said


def test_a_run_that_cannot_run_again_is_compared_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = withheld(tmp_path, "--max-num-seqs", "8")
    manifest = tmp_path / "run" / "manifest.json"
    text = manifest.read_text(encoding="utf-8").replace(BUSY, str(tmp_path / "gone.jsonl"))
    manifest.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert main(["validate", str(log), str(tmp_path / "run"), "--skip-seconds", "0"]) == 0
    assert "the log doctor cannot run it again" in capsys.readouterr().out


def test_calibrate_names_the_option_and_keeps_no_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate("--max-num-seqs", "8", "--output", tmp_path / "real.csv", dataset=BUSY)
    log = write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")
    out = tmp_path / "fitted.json"
    arguments = ["calibrate", str(log), *run_arguments(cluster=CLUSTER, dataset=BUSY)]
    assert main([*arguments, "--skip-seconds", "0", "--out", str(out)]) == 3
    assert "max_num_seqs 8 would explain the log" in capsys.readouterr().err
    assert not out.exists()


def test_the_link_of_data_parallel_ranks_can_be_fitted() -> None:
    cluster = ROOT / "cluster_config" / "single_node_moe_dp_ep_instance.json"
    options = checked_options(
        ["--cluster-config", str(cluster), "--dataset", LIGHT, "--cost-source", "roofline"]
    )
    _, constants = fitted_constants(prepare(options).lowered)
    assert "link_bandwidth_gb_per_s" in constants
