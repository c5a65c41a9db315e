"""What LoRA adapters add to a rank's operators, by hand from the kernels of vLLM 0.33."""

from fractions import Fraction

import pytest

from llmsim.model import Collective, Dtypes, Layout, LoraKernel, Moe, load_model, operators
from llmsim.model.memory.lora_slots import LoraSlots, adapter_bytes
from llmsim.model.operator import Operator
from llmsim.model.operators.lora import copies_of_adapter, touched_experts, with_lora

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
RANK = 16


def added(name: str, layout: Layout, *, sharded: bool = False) -> dict[str, Operator]:
    """By name, what adapters add."""
    model, slots = load_model(name), LoraSlots(2, RANK, fully_sharded=sharded)
    program = operators(model, layout, Dtypes())
    behind = with_lora(program, model, Dtypes(), slots.rank, slots.ranks(layout))
    assert [op for op in behind if "_lora" not in op.name] == list(program)
    return {op.name: op for op in behind if "_lora" in op.name}


@pytest.mark.parametrize("tp", [1, 2])
def test_a_linear_layer_has_two_kernels_and_reads_two_matrices(tp: int) -> None:
    found = added(LLAMA, Layout(tp=tp))
    outputs = (4096 + 2 * 1024) // tp
    kernels, matrices = found["qkv_proj_lora"], found["qkv_proj_lora_matrices"]
    assert isinstance(kernels, LoraKernel)
    assert isinstance(matrices, LoraKernel)
    assert (kernels.feature, kernels.kernels, kernels.repeat) == ("adapter_tokens", 3, 32)
    assert kernels.flops_per_token == 2 * RANK * (3 * 4096 + outputs)
    assert kernels.read_bytes_per_token == 2 * 4096 + 4 * 3 * RANK + 2 * outputs
    assert kernels.write_bytes_per_token == 2 * 4 * 3 * RANK + 2 * outputs
    assert (matrices.feature, matrices.kernels) == ("adapters", 0)
    assert matrices.read_bytes_per_token == 2 * RANK * (3 * 4096 + outputs)
    down = found["down_proj_lora"]
    assert down.flops_per_token == 2 * RANK * (14336 // tp + 4096)


def test_embedding_and_head_work_on_the_whole_vocabulary() -> None:
    found = added(LLAMA, Layout(tp=2))
    head, embedding = found["lm_head_lora"], found["embedding_lora"]
    assert (head.feature, head.part, head.repeat) == ("adapter_rows", "head", 1)
    assert head.flops_per_token == 2 * RANK * (4096 + 128256)
    assert (embedding.feature, embedding.part) == ("adapter_tokens", "prologue")
    assert found["embedding_lora_matrices"].read_bytes_per_token == 2 * RANK * 4096
    model = load_model(LLAMA)
    program = operators(model, Layout(tp=2), Dtypes())
    names = [op.name for op in with_lora(program, model, Dtypes(), RANK)]
    assert names.index("lm_head_lora") == names.index("logits_gather") + 1


@pytest.mark.parametrize("ep", [1, 2])
def test_experts_read_the_matrices_of_pairs_that_are_needed(ep: int) -> None:
    """What a pair reads, and all pairs of an adapter with the rest are its slot."""
    layout = Layout(tp=2, ep=ep)
    found = added(QWEN, layout)
    local, width = (128, 768 // 2) if ep == 1 else (64, 768)
    pairs, kernels = found["moe_lora_matrices"], found["moe_lora"]
    assert isinstance(kernels, LoraKernel)
    assert (pairs.feature, kernels.kernels) == ("adapter_experts", 7)
    assert pairs.read_bytes_per_token == 2 * RANK * 3 * (2048 + width)
    rows = Fraction(8 * local, 128)
    assert kernels.flops_per_token == 2 * rows * RANK * 3 * (2048 + width)
    model = load_model(QWEN)
    matrices = {name: op for name, op in found.items() if name.endswith("_matrices")}
    read = sum(op.read_bytes_per_token * op.repeat for op in matrices.values())
    read += pairs.read_bytes_per_token * (local - 1) * pairs.repeat
    tables = 2 * RANK * 151936  # the embedding's A is looked up, not read
    assert read + tables == adapter_bytes(model, layout, Dtypes(), RANK)


def test_tokens_of_an_adapter_need_experts() -> None:
    moe = next(op for op in operators(load_model(QWEN), Layout(), Dtypes()) if isinstance(op, Moe))
    touched = touched_experts(moe)
    assert touched[:3] == [0, 8, 16]  # 8, and 128 (1 - (120 / 128)^2) = 15.5
    assert touched[-1] == 128 > touched[-2]
    assert touched == sorted(touched)


@pytest.mark.parametrize("tp", [1, 4])
def test_fully_sharded_adapters_are_exchanged(tp: int) -> None:
    found = added(LLAMA, Layout(tp=tp), sharded=True)
    exchanged = {name: op for name, op in found.items() if isinstance(op, Collective)}
    if tp == 1:
        assert not exchanged
        return
    gather, reduce = exchanged["qkv_proj_lora_gather"], exchanged["o_proj_lora_reduce"]
    assert (gather.collective, reduce.collective) == ("all_gather", "all_reduce")
    assert gather.collective_bytes_per_token == 4 * 3 * RANK
    assert reduce.collective_bytes_per_token == 4 * RANK
    assert {op.feature for op in exchanged.values()} == {"tokens"}
    assert len(exchanged) == 4
    assert found["qkv_proj_lora"].flops_per_token == 2 * RANK * (3 * 4096 // tp + 6144 // tp)


def test_an_adapter_is_copied_matrix_by_matrix() -> None:
    """Both of each projection (3 + 1 + 2 + 1), and of embedding and head; experts are stacked."""
    model = load_model(LLAMA)
    assert copies_of_adapter(operators(model, Layout(tp=2), Dtypes()), model) == 2 * (32 * 7 + 2)
    model = load_model(QWEN)
    assert copies_of_adapter(operators(model, Layout(), Dtypes()), model) == 2 * (48 * 8 + 2)
