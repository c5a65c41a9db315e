"""What runs beside the measured kernels: bytes of KV writes and of experts' choices, by hand."""

import numpy as np
import pytest
from costs.builders import request

from llmsim.costs.sources.silicon.auxiliary_kernels import CHOICE_BYTES, expert_choices, kv_writes
from llmsim.costs.sources.silicon.memory_bound import REDUCTION_US, Streaming
from llmsim.model import Dtypes, load_model, resolve_dtypes

US_PER_BYTE = 1e-3
BYTES = np.array([1.0, 1e12])
STREAMING = Streaming(BYTES, BYTES * US_PER_BYTE, True, "a byte a nanosecond")
TOKENS = 100


def bytes_per_token(ps: np.ndarray, more_us: float = 0.0) -> float:
    return (ps[TOKENS] / 1e6 - more_us) / US_PER_BYTE / TOKENS


@pytest.mark.parametrize(
    ("tp", "kv", "expected"), [(1, "bf16", 4096 + 4096), (4, "bf16", 2048), (1, "fp8", 4096 + 2048)]
)
def test_keys_and_values_are_read_and_written(tp: int, kv: str, expected: int) -> None:
    """Eight heads of 128 for both: read as the layer made them, written as the cache keeps them."""
    [write] = kv_writes(request(hardware="H100", tp=tp, dtypes=Dtypes(kv=kv)), STREAMING)
    assert (write.name, write.repeat, write.feature) == ("kv_write", 32, "tokens")
    assert bytes_per_token(write.ps) == pytest.approx(expected) and write.ps[0] == 0


def test_a_latent_is_written_whole_on_every_rank() -> None:
    [write] = kv_writes(request("deepseek-ai/DeepSeek-V2-Lite", "H100", tp=4, ep=4), STREAMING)
    assert bytes_per_token(write.ps) == pytest.approx(2 * (512 + 64) * 2)


def test_an_indexers_keys_are_written_too() -> None:
    """128 elements in 16 bits become as many bytes and a scale."""
    writes = kv_writes(request("deepseek-ai/DeepSeek-V3.2", "H200", tp=8, ep=8), STREAMING)
    found = sorted(bytes_per_token(write.ps) for write in writes)
    assert found[0] == pytest.approx(2 * 128 + 128 + 4)


def test_choices_read_a_score_for_each_expert_and_write_the_chosen() -> None:
    [choice] = expert_choices(request("Qwen/Qwen3-30B-A3B", "H100"), STREAMING)
    assert choice.repeat == 48
    assert bytes_per_token(choice.ps, REDUCTION_US) == pytest.approx(2 * 128 + CHOICE_BYTES * 8)
    whole = request(
        "openai/gpt-oss-20b", "H100", dtypes=resolve_dtypes(load_model("openai/gpt-oss-20b"))
    )
    assert expert_choices(whole, STREAMING) == []
    assert expert_choices(request(hardware="H100"), STREAMING) == []
