"""Memory of LoRA slots, by hand from the shapes of vLLM 0.33's `lora/layers`."""

import pytest

from llmsim.config.errors import InputError
from llmsim.model.families.presets import load_model
from llmsim.model.layout import Layout
from llmsim.model.memory.ledger import MemoryLedger, memory_ledger
from llmsim.model.memory.lora_slots import LoraSlots, adapter_bytes
from llmsim.model.types import Dtypes

BYTES = 2
LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_dense_model_has_a_pair_for_each_projection(tp: int) -> None:
    """Inputs of row-parallel layers and outputs of column-parallel ones are cut over the ranks;
    embeddings and the head are not.
    """
    attention = 3 * 4096 + (4096 + 2 * 1024) // tp + 4096 // tp + 4096
    mlp = 2 * 4096 + 2 * 14336 // tp + 14336 // tp + 4096
    ends = 2 * (128256 + 4096)
    wanted = 16 * (32 * (attention + mlp) + ends) * BYTES
    assert adapter_bytes(load_model(LLAMA), Layout(tp=tp), Dtypes(), 16) == wanted


@pytest.mark.parametrize("ep", [1, 2])
def test_every_expert_of_a_rank_has_pairs(ep: int) -> None:
    """Experts are cut over the ranks, or spread whole."""
    tp = 2
    attention = 3 * 2048 + (4096 + 2 * 512) // tp + 4096 // tp + 2048
    local, width = (128 // ep, 768) if ep > 1 else (128, 768 // tp)
    experts = local * (2 * (2048 + width) + width + 2048)
    router, ends = 2048 + 128, 2 * (151936 + 2048)
    wanted = 8 * (48 * (attention + experts + router) + ends) * BYTES
    assert adapter_bytes(load_model(QWEN), Layout(tp=tp, ep=ep), Dtypes(), 8) == wanted


def test_fully_sharded_slots_are_cut_on_both_sides() -> None:
    tp = 4
    attention = 3 * 4096 // tp + (4096 + 2 * 1024) // tp + (4096 + 4096) // tp
    mlp = 2 * 4096 // tp + 2 * 14336 // tp + 14336 // tp + 4096 // tp
    wanted = 16 * (32 * (attention + mlp) + 2 * (128256 + 4096)) * BYTES
    slots, model = LoraSlots(1, 16, fully_sharded=True), load_model(LLAMA)
    assert slots.device_bytes(model, Layout(tp=tp), Dtypes()) == wanted
    one = adapter_bytes(model, Layout(), Dtypes(), 16)
    assert slots.device_bytes(model, Layout(), Dtypes()) == one
    experts = 128 * 3 * (2048 // 2 + 768 // 2)
    attention = 3 * 2048 // 2 + (4096 + 2 * 512) // 2 + (4096 + 2048) // 2
    wanted = 16 * (48 * (attention + experts + 2048 + 128) + 2 * (151936 + 2048)) * BYTES
    assert slots.device_bytes(load_model(QWEN), Layout(tp=2), Dtypes()) == wanted


@pytest.mark.parametrize(
    ("model", "layout", "said"),
    [(LLAMA, Layout(tp=3), "over 3 tensor-parallel ranks"), (QWEN, Layout(tp=2, ep=2), "expert")],
)
def test_what_vllm_does_not_cut_is_refused(model: str, layout: Layout, said: str) -> None:
    with pytest.raises(InputError, match=said):
        LoraSlots(1, 16, fully_sharded=True).device_bytes(load_model(model), layout, Dtypes())


def ledger(lora: LoraSlots | None) -> MemoryLedger:
    return memory_ledger(
        load_model(LLAMA),
        Layout(),
        Dtypes(),
        device_bytes=80 * 2**30,
        utilization=0.9,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        block_size=16,
        lora=lora,
    )


def test_slots_leave_less_for_blocks() -> None:
    model, slots = load_model(LLAMA), LoraSlots(4, 64)
    without, limited = ledger(None), ledger(slots)
    taken = 4 * adapter_bytes(model, Layout(), Dtypes(), 64)
    assert dict(limited.lines)["slots of 4 LoRA adapters of rank 64"] == -taken
    assert sum(size for _, size in limited.lines) == 0
    lost = without.num_blocks - limited.num_blocks
    assert abs(lost * limited.block_bytes - taken) <= limited.block_bytes
