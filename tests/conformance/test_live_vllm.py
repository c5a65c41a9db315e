"""The installed vLLM's scheduler in our loop (skipped without it), and the cases that the comparison draws."""

import pytest

from llmsim.cli import main
from llmsim.scheduling.random_cases import random_case
from llmsim.scheduling.vllm_live import installed_version


def test_random_cases_repeat_and_cover_the_options() -> None:
    cases = [random_case(seed, 20) for seed in range(120)]
    assert cases == [random_case(seed, 20) for seed in range(120)]
    for option in ("policy", "watermark", "speculative", "long_prefill_token_threshold", "max_num_scheduled_tokens",
                   "pipeline_parallel_size", "prefill_schedule_interval"):  # fmt: skip
        assert 10 < sum(option in case["config"] for case in cases) < 110
    assert {case["config"]["block_size"] for case in cases} == {1, 3, 8, 16, 24, 32, 64, 100, 128, 256}
    assert {case["config"].get("use_v2_model_runner") for case in cases} == {None, False, True}
    for case in cases:
        longest = case["config"]["max_model_len"]
        for request in case["requests"]:
            prompt = sum(length for _, length in request["segments"])
            assert 1 <= prompt <= longest - 1 and all(length > 0 for _, length in request["segments"])
            blocks = -(-min(prompt + request["output_len"], longest) // case["config"]["block_size"])
            assert blocks < case["config"]["num_gpu_blocks"]


@pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed (extra llmsim[vllm])")
def test_five_random_cases_are_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "vllm", "--cases", "5", "--requests", "60"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("5/5 cases identical")


def test_without_vllm_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("llmsim.scheduling.vllm_live.installed_version", lambda: None)
    assert main(["conformance", "vllm"]) == 0
    assert "skipped: vLLM is not installed" in capsys.readouterr().err
