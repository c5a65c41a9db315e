"""The ledger of models whose layers see different contexts."""

from msgspec.structs import replace

from llmsim.model import (
    Dtypes,
    Layout,
    MemoryLedger,
    ModelConfig,
    load_model,
    memory_ledger,
    resolve_dtypes,
)

GEMMA = load_model("google/gemma-3-27b-it")
NEXT = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")


def ledger(
    model: ModelConfig, seqs: int, tp: int = 1, gib: int = 80, *, hybrid: bool = False
) -> MemoryLedger:
    return memory_ledger(
        model,
        Layout(tp, tp if model.num_experts else 1),
        resolve_dtypes(model),
        device_bytes=gib << 30,
        utilization=0.9,
        max_num_seqs=seqs,
        max_num_batched_tokens=2048,
        block_size=16,
        hybrid=hybrid,
    )


def tokens(of: MemoryLedger) -> int:
    return of.num_blocks * 16


def test_windows_are_set_aside_where_that_leaves_more() -> None:
    few, plain = ledger(GEMMA, 8), ledger(replace(GEMMA, layer_kinds=(), window=0), 8)
    assert tokens(few) > 2 * tokens(plain)
    assert few.block_bytes == 10 * 2 * 16 * 128 * 2 * 16  # the ten layers that see everything
    aside = dict(few.lines)["KV of layers that see 1024 tokens, 8 sequences"]
    assert -aside == (8 * (64 + 1) * 16 + 2048) * 52 * 2 * 16 * 128 * 2
    assert "set aside" in few.notes[0]
    assert sum(size for _, size in few.lines) == 0


def test_the_better_bound_is_taken_and_never_beats_the_engine() -> None:
    many, plain = ledger(GEMMA, 256), ledger(replace(GEMMA, layer_kinds=(), window=0), 256)
    assert tokens(many) == tokens(plain)
    assert "kept for whole sequences" in many.notes[0]
    # A sequence within the window needs every layer: no bound may hold more short sequences than
    # bytes allow.
    few = ledger(GEMMA, 8)
    left = -next(size for label, size in few.lines if label.startswith("KV cache"))
    aside = -dict(few.lines)["KV of layers that see 1024 tokens, 8 sequences"]
    assert left + aside >= 8 * 1024 * 62 * 2 * 16 * 128 * 2


def test_models_without_a_global_layer_keep_whole_sequences() -> None:
    mistral = load_model("mistralai/Mistral-7B-v0.1")
    assert (
        ledger(mistral, 8).num_blocks
        == ledger(replace(mistral, layer_kinds=(), window=0), 8).num_blocks
    )


def test_linear_attention_reserves_its_state() -> None:
    one, two = ledger(NEXT, 64, tp=4), ledger(NEXT, 128, tp=4)
    label = next(label for label, _ in one.lines if label.startswith("linear-attention state"))
    state = 9 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)
    assert -dict(one.lines)[label] == 64 * state
    assert one.num_blocks > two.num_blocks
    assert "linear-attention" in one.notes[0]


def test_plain_models_have_no_notes() -> None:
    assert ledger(load_model("meta-llama/Llama-3.1-8B"), 64).notes == ()
    assert Dtypes().of(NEXT, "attention") == "bf16"


def test_requests_at_once_count_the_blocks_of_each_table() -> None:
    """Gemma 4 keeps half as much of a token in layers that see everything, whose blocks hold 32
    tokens: 8,192 of 262,144, and 193 blocks of 16 in each of five tables of windows.
    """
    model = load_model("google/gemma-4-26B-A4B-it")
    shared = ledger(model, 8, hybrid=True)
    assert shared.tables is not None
    assert set(shared.tables.block_sizes) == {16, 32}
    windows = 5 * (-(-(1023 + 2048) // 16) + 1)
    assert shared.at_once(262144, 2048, 16) == shared.num_blocks / (8192 + windows)
    short = 32 // 32 + 5 * (32 // 16 + 1)
    assert shared.at_once(32, 2048, 16) == shared.num_blocks / short


def test_requests_at_once_round_up_to_whole_blocks() -> None:
    of = ledger(load_model("meta-llama/Llama-3.1-8B"), 8)
    assert of.at_once(33, 2048, 16) == of.num_blocks / 3
