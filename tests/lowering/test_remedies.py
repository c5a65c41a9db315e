"""What a refusal for want of memory names is tried: options, the split, and the larger device."""

import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.cli import main
from llmsim.config.errors import DoesNotFit, InfeasibleError, WiderSplit
from llmsim.sizing.answer import text
from llmsim.sizing.size import size

LOAD = "synthetic:n=1,rate=1,input=fixed:8,output=fixed:2"
PAIRS = [
    ("meta-llama/Llama-2-13b-hf", "A30"),
    ("meta-llama/Llama-3.1-70B", "L40S"),  # the larger device has larger default batches
    ("openai/gpt-oss-120b", "A30"),
    ("google/gemma-3-27b-it", "RTX4090"),
    ("Qwen/Qwen3-235B-A22B", "H100"),
    ("deepseek-ai/DeepSeek-V4-Pro", "H200"),  # of two bounds of its windows the smaller one fits
    ("moonshotai/Kimi-K2-Instruct", "L4"),  # beyond a node of eight devices
    ("moonshotai/Kimi-K3", "H200"),  # in two stages
]


def refusal(model: str, device: str) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as caught:
        llmsim.run(llmsim.Cluster.build(model, device), LOAD)
    return caught.value


@pytest.mark.parametrize(("model", "device"), PAIRS)
def test_the_options_that_init_names_do(
    model: str, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["init", "-o", str(tmp_path / "c.json"), "--model", model, "--device", device]
    assert main(words) == 3
    remedy = capsys.readouterr().err.split("it would fit with ")[1]
    options = remedy.split(" or a device of at least ")[0]
    assert options.startswith("--tp ")
    assert main([*words, *shlex.split(options)]) == 0


@pytest.mark.filterwarnings("error")  # requests that can never run
@pytest.mark.parametrize(("model", "device"), PAIRS)
def test_the_keys_that_a_run_names_and_the_larger_device_do(model: str, device: str) -> None:
    error = refusal(model, device)
    assert error.wider is not None
    assert f"it would fit with {error.wider.in_keys} or a device of at least" in str(error)
    fields = llmsim.Cluster.build(model, device).fields()
    instance = fields["nodes"][0]["instances"][0]
    sizes = {"tp_size": error.wider.tp, "pp_size": error.wider.pp}
    fields["nodes"][0]["instances"][0] = instance | sizes
    llmsim.run(fields, LOAD, cost_source="roofline")
    memory = instance["npu_mem"] | {"mem_size": error.least_gib}
    fields["nodes"][0]["instances"][0] = instance | {"npu_mem": memory}
    llmsim.run(fields, LOAD, cost_source="roofline")


def test_a_larger_share_of_the_present_memory_comes_first() -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    with pytest.raises(DoesNotFit) as caught:
        llmsim.run(cluster, LOAD, gpu_memory_utilization=0.2)
    assert caught.value.utilization == 0.23
    assert "fit with gpu_memory_utilization 0.23, tp_size 2 on 2 devices or" in str(caught.value)
    llmsim.run(cluster, LOAD, gpu_memory_utilization=0.23)
    with pytest.raises(DoesNotFit):
        llmsim.run(cluster, LOAD, gpu_memory_utilization=0.22)


def test_no_device_with_less_memory_does() -> None:
    error = refusal("meta-llama/Llama-2-13b-hf", "A30")
    fields = llmsim.Cluster.build("meta-llama/Llama-2-13b-hf", "A30").fields()
    fields["nodes"][0]["instances"][0]["npu_mem"]["mem_size"] = error.least_gib - 0.02
    with pytest.raises(InfeasibleError):
        llmsim.run(fields, LOAD)


def test_experts_stay_spread_over_all_devices() -> None:
    fields = llmsim.Cluster.build("Qwen/Qwen3-235B-A22B", "H100", tp=2, ep=2).fields()
    with pytest.raises(DoesNotFit) as caught:
        llmsim.run(fields, LOAD)
    assert caught.value.wider == WiderSplit(8, 1, 8, 2, 1)
    assert "tp_size 8, ep_size 8 on 8 devices" in str(caught.value)


def test_a_refusal_crosses_processes_whole() -> None:
    error = DoesNotFit(
        "a model does not fit", "it needs 9 of 8 GiB", 12.5, WiderSplit(4, 2, None, 1, 1), 0.9
    )
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert str(error) == (
        "a model does not fit; it would fit with gpu_memory_utilization 0.9, tp_size 4, pp_size 2 "
        "on 8 devices or a device of at least 12.50 GiB: it needs 9 of 8 GiB"
    )
    assert (again.problem, again.arithmetic) == (error.problem, error.arithmetic)
    assert (again.least_gib, again.wider) == (error.least_gib, error.wider)
    assert again.utilization == error.utilization == 0.9


SLO: dict[str, Any] = {
    "concurrency": 1,
    "input": "fixed:16",
    "output_tokens": "fixed:2",
    "slo": "ttft:60000",
    "architecture": "colocated",
}


@pytest.mark.parametrize(
    ("device", "given", "named"),
    [
        ("H200", {"max_devices": 4}, {"max_devices": 8}),
        ("H100", {"max_devices": 8}, {"max_devices": 16}),
    ],
)
def test_size_names_the_options_that_let_a_model_fit(
    device: str, given: dict[str, int], named: dict[str, int]
) -> None:
    model = "meta-llama/Llama-3.1-405B"
    answer = size(model, device, **SLO, **given)
    assert answer.best is None
    options = [f"--{name.replace('_', '-')} {value}" for name, value in named.items()]
    assert f" {device}: give {' '.join(options)}." in text(answer)
    assert size(model, device, **SLO, **(given | named)).best is not None


def test_size_says_what_rules_every_layout_out() -> None:
    answer = size("meta-llama/Llama-3.1-8B", "H100", rate=1e5, slo="ttft:2000,tpot:100")
    shown = text(answer)
    assert "The load needs more than the data sheet's peak of all devices (H100 1 x TP" in shown


def test_a_prompt_beyond_the_context_is_told_from_one_beyond_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    llmsim.Cluster.build("state-spaces/mamba-2.8b-hf", "H100").save(path)
    words = ["run", "--cluster-config", str(path), "--quiet", "--dataset"]
    words += ["synthetic:n=1,rate=1,input=fixed:500,output=fixed:100"]
    assert main([*words, "--max-model-len", "256"]) == 3
    error = capsys.readouterr().err
    assert "max_model_len of group 0 is 256" in error and "KV" not in error
    assert "raise max_model_len to 600, or shorten" in error
    assert main([*words, "--max-model-len", "600"]) == 0
