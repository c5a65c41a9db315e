"""What SGLang's server derives from its card, its layout and its model, by release."""

from pathlib import Path
from typing import Any

import pytest

from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.config.engine.args import EngineArgs, Given, resolve_engine
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.sglang.defaults import Server, with_server_defaults
from llmsim.config.engine.speculative import SpeculativeConfig
from llmsim.config.errors import InfeasibleError

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
GIB = 1 << 30
H100, H200, B200, MI355X, L40S, RTX4090 = (
    int(gib * GIB) for gib in (79.65, 140.4, 179.1, 288, 44.99, 23.99)
)
"""As nvidia-smi and amd-smi report them."""
HYBRID = ("Qwen3NextForCausalLM",)


def started(release: str, memory_bytes: int, *, given: Any = None, **server: Any) -> EngineArgs:
    """The options of a server of that release."""
    profile = load_profile(f"sglang-{release}")
    layers = [] if given is None else [Given("command line", None, given, lambda name: name)]
    args = resolve_engine(layers, profile, "gpu", memory_bytes)
    return with_server_defaults(args, Server("gpu", memory_bytes, **server))


@pytest.mark.parametrize(
    ("release", "memory_bytes", "devices", "share"),
    [
        # sgl-project/sglang, issue 29092 (June 2026): 0.828 for Qwen3-32B on H100.
        ("0.5.13", H100, 2, 0.828),
        # Start-up logs of SGLang 0.5.8 and 0.5.9 on eight MI355X: 0.908.
        ("0.5.9", MI355X, 8, 0.908),
        # By hand: (81,561.6 - 512 - 8,192 x 1.5 - 256 x 2 - 128) / 81,561.6.
        ("0.5.7", H100, 1, 0.835),
        # (143,769.6 - 512 - 12,288 - 512 x 2 - 1,024) / 143,769.6.
        ("0.5.7", H200, 8, 0.897),
        # Without the floor of 10 GiB: (24,565.76 - 512 - 2,048 x 1.5 - 24 x 2 - 128) / 24,565.76.
        ("0.5.7", RTX4090, 1, 0.847),
    ],
)
def test_the_share_of_weights_and_kv(
    release: str, memory_bytes: int, devices: int, share: float
) -> None:
    args = started(release, memory_bytes, devices=devices)
    assert args.gpu_memory_utilization == share
    assert "its rule" in args.origin["gpu_memory_utilization"]
    given = started(release, memory_bytes, given={"gpu_memory_utilization": 0.5}, devices=devices)
    assert given.gpu_memory_utilization == 0.5


def test_chunks_that_leave_no_memory_for_weights_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"GiB for chunks of 16,384 tokens .* lower max_num"):
        started("0.5.10", RTX4090, given={"max_num_batched_tokens": 16_384})
    stated = {"max_num_batched_tokens": 16_384, "gpu_memory_utilization": 0.8}
    assert started("0.5.10", RTX4090, given=stated).gpu_memory_utilization == 0.8


def test_drafts_and_ranks_of_attention_take_their_part() -> None:
    config = SpeculativeConfig(method="eagle", num_speculative_tokens=3, acceptance_rate=0.7)
    drafts = {"speculative_config": config}
    alone = started("0.5.7", H200, devices=8).gpu_memory_utilization
    drafting = started("0.5.7", H200, devices=8, given=drafts).gpu_memory_utilization
    ranks = started("0.5.7", H200, devices=8, attention_ranks=8).gpu_memory_utilization
    memory_mib = H200 / (1 << 20)
    assert (alone - drafting) * memory_mib == pytest.approx(2048, abs=150)
    assert (alone - ranks) * memory_mib == pytest.approx(512 * 8 * 4.5, abs=150)


@pytest.mark.parametrize(
    ("release", "memory_bytes", "devices", "tokens", "largest"),
    [
        ("0.5.7", B200, 8, 16384, 512),
        ("0.5.7", H100, 1, 8192, 256),
        ("0.5.7", H100, 4, 8192, 512),
        ("0.5.7", L40S, 1, 4096, 32),
        ("0.5.7", L40S, 8, 4096, 160),
        ("0.5.7", RTX4090, 1, 2048, 24),
        ("0.5.23", RTX4090, 1, 4096, 48),
        ("0.5.23", 16 * GIB, 1, 2048, 8),
    ],
)
def test_chunks_and_graphs_by_card(
    release: str, memory_bytes: int, devices: int, tokens: int, largest: int
) -> None:
    args = started(release, memory_bytes, devices=devices)
    assert args.max_num_batched_tokens == tokens
    assert args.cuda_graph_sizes[-1] == largest
    assert set(args.cuda_graph_sizes) >= {size for size in (1, 2, 4, 8, 12, 16) if size <= largest}
    own = started(release, memory_bytes, given={"cuda_graph_sizes": (1, 700)}, devices=devices)
    assert own.cuda_graph_sizes == (1, 700)


@pytest.mark.parametrize(
    ("release", "server", "sizes", "largest"),
    [
        ("0.5.9", {}, 0, 0),
        ("0.5.10", {}, 58, 8192),
        ("0.5.10", {"latent": True}, 42, 2048),
        ("0.5.10", {"architectures": HYBRID}, 0, 0),
        ("0.5.10", {"stages": 2}, 0, 0),
        ("0.5.10", {"attention_ranks": 8}, 0, 0),
        ("0.5.10", {"pd_type": "prefill"}, 0, 0),
        ("0.5.16", {"latent": True}, 0, 0),
        ("0.5.16", {"pd_type": "prefill"}, 58, 8192),
        ("0.5.16", {"pd_type": "decode"}, 0, 0),
        ("0.5.19", {"latent": True}, 42, 2048),
        ("0.5.23", {"latent": True}, 58, 8192),
    ],
)
def test_graphs_of_prompts(release: str, server: Any, sizes: int, largest: int) -> None:
    args = started(release, H200, **server)
    assert len(args.prefill_graph_sizes) == sizes
    assert max(args.prefill_graph_sizes, default=0) == largest
    assert started(release, H200, given={"enforce_eager": True}).prefill_graph_sizes == ()


def test_other_engines_are_left_alone() -> None:
    args = resolve_engine([], load_profile("vllm-0.24"), "gpu", H100)
    assert with_server_defaults(args, Server("gpu", H100)) == args


def test_the_scheduler_decides_the_default_release() -> None:
    cluster = load_cluster(CLUSTER)

    def profile(**options: Any) -> str:
        group = resolve(cluster, EngineOverrides(**options)).groups[0]
        return group.engine.engine_profile

    assert profile() == "vllm-0.24"
    assert profile(scheduler="sglang") == "sglang-0.5.23"
    assert profile(scheduler="sglang", engine_profile="sglang-0.5.8") == "sglang-0.5.7"
    assert profile(scheduler="sglang", engine_profile="vllm-0.24") == "vllm-0.24"
