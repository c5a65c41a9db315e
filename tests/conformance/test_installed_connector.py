"""Which groups of `--scheduler vllm` get a KV connector, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from llmsim import _native
from llmsim.cli import main
from llmsim.scheduling.conformance.vllm.installed import _connector
from llmsim.scheduling.conformance.vllm.live import prompt_alone
from llmsim.scheduling.conformance.vllm.request import LiveRequest


def group(**given: Any) -> Any:
    flags = dict.fromkeys(
        ("kv_producer", "kv_consumer", "tiered", "prefill_all_but_last_token"), False
    )
    failures = SimpleNamespace(recomputes=given.pop("recomputes", False))
    offloading = _native.OffloadingConfig()
    offloading.num_chunks = given.pop("chunks", 0)
    return SimpleNamespace(**{**flags, **given}, load_failures=failures, offloading=offloading)


def test_groups_that_hand_kv_over_or_have_pools_get_a_connector() -> None:
    assert _connector(group()) == {}
    for flag, role in (("kv_producer", "prefill"), ("kv_consumer", "decode"), ("tiered", "both")):
        connector = {"state_bytes": 0, "load_failures": {"policy": "fail"}}
        assert _connector(group(**{flag: True})) == {"role": role, "connector": connector}
    again = _connector(group(kv_consumer=True, recomputes=True))
    assert again["connector"]["load_failures"] == {"policy": "recompute"}
    states = _connector(group(kv_consumer=True, prefill_all_but_last_token=True))
    assert states["connector"]["state_bytes"] == 1


def test_groups_that_offload_kv_get_vllms_own_connector() -> None:
    options = {"chunk_blocks": 1, "eviction": "lru", "store_threshold": 0, "prompt_only": True}
    options |= {"sync_load_tokens": 0, "max_tracker_size": 64_000}
    connector = {"kind": "offloading", "pool_chunks": 7, **options}
    assert _connector(group(tiered=True, chunks=7)) == {"role": "both", "connector": connector}


@pytest.mark.parametrize(("tokens", "left"), [(1, 1), (2, 1), (9, 8)])
def test_a_prompt_alone_asks_for_one_token(tokens: int, left: int) -> None:
    request = LiveRequest(
        "a", 0.0, tokens, 5, 0, lambda: list(range(tokens)), lambda k: k, stops=True
    )
    whole, cut = (prompt_alone(request, all_but_last=last) for last in (False, True))
    assert (whole.input_tokens, whole.output_tokens, whole.stops) == (tokens, 1, False)
    assert (cut.input_tokens, cut.prompt()) == (left, list(range(left)))


def test_writing_late_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--cluster-config", "cluster_config/h100_cpu_prefix_pool.json"]
    load = ["--dataset", "dataset/example_10.jsonl", "--prefix-storage", "CPU"]
    late = ["--kv-tier-write", "write-back", "--scheduler", "vllm"]
    assert main([*run, *load, *late]) == 2
    assert "write-back does not go with the scheduler vllm" in capsys.readouterr().err
