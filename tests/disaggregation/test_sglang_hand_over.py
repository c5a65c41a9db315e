"""What SGLang's prefill and decode instances do otherwise than vLLM's: KV moves by chunks, and both
engines hear on their own that a client has gone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disaggregation.test_runs import assert_sound, cluster, instance, run, written

from llmsim.core import PS_PER_S, Results, Status

SGLANG = ["--scheduler", "sglang", "--cost-source", "roofline"]
TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
"""Of all layers of Llama-3.1-8B."""
HEARD_S = 2
"""SGLang's API server waits so long until it tells the engine that a client has gone."""


def results(path: Path, trace: str, *options: str, link_gb_s: float = 50, **more: Any) -> Results:
    pair = [instance("prefill", **more), instance("decode", **more)]
    document = cluster(pair, link_bw=link_gb_s, link_latency=1000)
    return run(written(path, document), *SGLANG, *options, trace=trace)


def one(column: Any) -> int:
    return int(np.asarray(column)[0])


def test_only_the_last_chunk_is_left_when_a_prompt_ends(tmp_path: Path) -> None:
    """Steps take longer than the links need for a chunk."""
    trace, chunk = "synthetic:n=1,rate=1,input=fixed:1900,output=fixed:4,seed=1", "512"
    found = {}
    for how in ("whole", "chunked"):
        sent = ["--kv-transfer", how, "--max-num-scheduled-tokens", chunk]
        moved = results(tmp_path, trace, *sent).kv_transfers
        assert moved is not None
        assert one(moved.kv_transfer_bytes) == 1900 * TOKEN_BYTES
        found[how] = one(moved.kv_landed_ps) - one(moved.prefill_end_ps)
    left = 1900 - 3 * 512
    saved_s = (1900 - left) * TOKEN_BYTES / 50e9
    assert found["whole"] - found["chunked"] == pytest.approx(saved_s * PS_PER_S, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "how"), [([], "chunked"), (["--kv-transfer-mode", "pull"], "whole")]
)
def test_sglang_sends_chunks_where_it_pushes(options: list[str], how: str, tmp_path: Path) -> None:
    trace = "synthetic:n=1,rate=1,input=fixed:1900,output=fixed:4,seed=1"
    chosen = [*options, "--max-num-scheduled-tokens", "512"]
    ours, told = results(tmp_path, trace, *chosen), [*chosen, "--kv-transfer", how]
    other = results(tmp_path, trace, *told)
    assert ours.kv_transfers is not None and other.kv_transfers is not None
    assert one(ours.kv_transfers.kv_landed_ps) == one(other.kv_transfers.kv_landed_ps)


def test_servers_go_on_until_they_hear_that_a_client_has_gone(tmp_path: Path) -> None:
    """The client leaves before its prompt is computed, and the answer goes on for two seconds."""
    trace = "synthetic:n=1,rate=1,input=fixed:2000,output=fixed:2000,seed=1"
    found = results(tmp_path, trace, "--request-timeout", "0.001")
    requests, moved = found.requests, found.kv_transfers
    assert moved is not None
    assert requests.status[0] == Status.CANCELLED
    assert one(moved.kv_landed_ps) > 0
    assert one(requests.emitted_tokens) > 200
    assert set(found.invariants.values()) == {"ok"}


def test_memory_that_kv_comes_into_stays_until_the_prefill_server_has_answered(
    tmp_path: Path,
) -> None:
    """The KV of a prompt takes 3 s; the next prompt finds memory when all of it is there."""
    trace = "synthetic:n=2,rate=10,input=fixed:2400,output=fixed:4,seed=1"
    pool = ["--block-size", "16", "--num-gpu-blocks-override", "200"]
    small = ["--sglang-reserved-tokens", "8", "--request-timeout", "0.5"]
    found = results(tmp_path, trace, *pool, *small, link_gb_s=0.1)
    requests, moved = found.requests, found.kv_transfers
    assert moved is not None
    assert list(requests.status) == [Status.CANCELLED, Status.CANCELLED]
    landed_ps = one(moved.kv_landed_ps)
    sent_s = (landed_ps - one(moved.prefill_end_ps)) / PS_PER_S
    assert sent_s == pytest.approx(2400 * TOKEN_BYTES / 1e8, rel=1e-3)
    assert landed_ps > (0.5 + HEARD_S) * PS_PER_S, "the engines have heard of it by then"
    assert moved.kv_reserved_ps[1] == -1, "the second client has gone before there was memory"
    assert set(found.invariants.values()) == {"ok"}


@pytest.mark.parametrize("options", [[], ["--no-sglang-overlap"], ["--enable-prefix-caching"]])
def test_clients_that_give_up_leave_nothing_behind(options: list[str], tmp_path: Path) -> None:
    """Queues for memory, for the prompt's step, on the links and in the decode batch are left."""
    trace = "synthetic:n=80,rate=30,input=uniform:200-3000,output=uniform:20-300,seed=4"
    small = ["--block-size", "16", "--num-gpu-blocks-override", "900"]
    found = results(
        tmp_path,
        trace,
        *[*small, *options, "--request-timeout", "1", "--max-num-scheduled-tokens", "512"],
        link_gb_s=2,
    )
    assert set(found.invariants.values()) == {"ok"}
    states = set(found.requests.status.tolist())
    assert states == {Status.CANCELLED, Status.FINISHED}


def test_all_chunks_arrive(tmp_path: Path) -> None:
    trace = "synthetic:n=30,rate=20,input=uniform:200-3000,output=uniform:2-30,seed=3"
    found = results(tmp_path, trace, "--max-num-scheduled-tokens", "512")
    assert_sound(found)
    assert found.kv_transfers is not None
    expected = found.workload.input_tokens * TOKEN_BYTES
    assert (found.kv_transfers.kv_transfer_bytes == expected).all()
