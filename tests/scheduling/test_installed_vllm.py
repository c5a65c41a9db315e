"""`--scheduler vllm`: the installed vLLM's own scheduler in a run; the same to the byte as ours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.cli import run_main
from llmsim.core import Workload
from llmsim.scheduling.conformance.vllm.installed import OWN, _request
from llmsim.scheduling.conformance.vllm.live import installed_version

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
PRESSED = (
    "--num-gpu-blocks-override",
    "300",
    "--max-model-len",
    "2048",
    "--max-num-batched-tokens",
    "1024",
)
EAGLE = '{"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.9, 0.6, 0.3]}'
SHARED = (
    "synthetic:n=120,rate=30,input=lognormal:150:max=600,"
    "output=lognormal:100:max=400,prefixes=6:tokens=160:share=0.7"
)
needs_vllm = pytest.mark.skipif(
    not str(installed_version()).startswith("0.24"), reason="vLLM 0.24 is not installed"
)


def run(*options: str) -> int:
    arguments = [
        "--cluster-config",
        str(CLUSTER),
        "--dataset",
        SHARED,
        "--cost-source",
        "roofline",
        "--json",
    ]
    return run_main([*arguments, "--max-num-seqs", "64", *options])


@needs_vllm
@pytest.mark.parametrize(
    "options",
    [
        PRESSED,
        (
            *PRESSED,
            "--no-async-scheduling",
            "--scheduling-policy",
            "priority",
            "--block-size",
            "32",
        ),
        (*PRESSED, "--speculative-config", EAGLE),
        (
            *PRESSED,
            "--speculative-config",
            EAGLE.replace("eagle", "ngram"),
            "--request-timeout",
            "3",
        ),
        (
            "--no-enable-prefix-caching",
            "--max-model-len",
            "4096",
            "--long-prefill-token-threshold",
            "128",
        ),
    ],
)
def test_a_run_is_the_same_as_with_our_own(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for scheduler in ("vllm_v1", "vllm"):
        output = tmp_path / f"{scheduler}.csv"
        assert run(*options, "--scheduler", scheduler, "--output", str(output)) == 0
        summary: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert set(summary["invariants"].values()) == {"ok"}
        same = (
            "completed",
            "cancelled",
            "steps",
            "preemptions",
            "mean_ttft_ms",
            "p99_itl_ms",
            "speculation",
        )
        found.append(([summary[key] for key in same], output.read_bytes()))
    assert found[0] == found[1]


def test_equal_content_is_equal_tokens_and_nothing_else_is() -> None:
    n, keys = 2, np.array([5, 6, 5, 7], np.uint64)
    workload = Workload(
        arrival_ps=np.array([0, -1]),
        input_tokens=np.array([35, 40], np.int32),
        output_tokens=np.array([4, 4], np.int32),
        model=np.zeros(n, np.int16),
        models=(),
        next_call=np.full(n, -1),
        tool_delay_ps=np.zeros(n, np.int64),
        key_offsets=np.array([0, 2, 4]),
        keys=keys,
        granularity=16,
        source="",
    )
    first, second = (_request(workload, row) for row in range(n))
    assert first.prompt()[:16] == second.prompt()[:16]
    assert not set(first.prompt()[16:]) & set(second.prompt()[16:])
    assert first.output(0) == OWN + 35 and first.output(0) not in first.prompt()
    assert second.arrival_s == 0.0


def test_without_vllm_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "llmsim.scheduling.conformance.vllm.installed.installed_version", lambda: None
    )
    assert run("--scheduler", "vllm") == 2
    assert "install llmsim[vllm]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--skip-prefill",), "is no option of vLLM's scheduler"),
        (("--scheduling-policy", "sjf"), "is no order of vLLM's scheduler"),
    ],
)
def test_what_vllm_does_not_have_is_refused(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--scheduler", "vllm", *options) == 2
    assert words in capsys.readouterr().err
