"""The log doctor names an option that was withheld, and is silent where a constant explains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_logs import CLUSTER, rows_of, run_arguments, simulate, write_engine_log
from msgspec.structs import replace

from llmsim.api.logs import fitted_constants
from llmsim.api.preparation.prepare import prepare, trial
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.validation.fit.doctor import Diagnosis, diagnose, most_tokens
from llmsim.validation.logs.recording import Recording, recording_of

BUSY = "synthetic:n=60,rate=12,input=lognormal:200,output=lognormal:150,seed=5"
LIGHT = "synthetic:n=40,rate=4,input=lognormal:200,output=lognormal:100,seed=5"
FULL = "synthetic:n=60,rate=20,input=lognormal:600,output=lognormal:150,seed=5"
ROOT = Path(__file__).resolve().parents[2]


def diagnosis(trace: str, *hidden: str, constants: float = float("inf")) -> Diagnosis | None:
    described = checked_options(run_arguments(dataset=trace))
    log = recording_of(trial(checked_options(run_arguments(*hidden, dataset=trace))))
    engine = prepare(described).lowered.groups[0].engine

    def with_changes(changed: Mapping[str, Any]) -> Recording:
        return recording_of(trial(replace(described, engine={**described.engine, **changed})))

    return diagnose(log, with_changes, engine, 0.0, constants)


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
    full = recording_of(
        trial(checked_options(run_arguments("--num-gpu-blocks-override", "500", dataset=FULL)))
    )
    tokens, share = most_tokens(full)
    assert tokens == pytest.approx(500 * 16, rel=0.1) and share > 0.1


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
