"""Which KV goes from which rank to which, between any two layouts."""

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsim.config.errors import NotYetError
from llmsim.lowering.kv.resharding import kv_shares, of_several_kinds, prefill_all_but_last_token
from llmsim.model import Dtypes, Layout, ModelConfig, layout_problem, load_model
from llmsim.model.memory.sizes import kv_bytes_per_token, kv_groups, state_bytes_per_sequence

LLAMA = load_model("meta-llama/Llama-3.1-8B")  # 8 KV heads of 128, 32 layers
DEEPSEEK = load_model("deepseek-ai/DeepSeek-V3")
powers = st.sampled_from([1, 2, 4, 8, 16])


@given(heads=powers, prefill=powers, decode=powers, kv=st.sampled_from(["bf16", "fp8"]))
def test_every_decode_rank_gets_what_it_stores_from_ranks_that_have_it(
    heads: int, prefill: int, decode: int, kv: str
) -> None:
    model, dtypes = replace(LLAMA, num_key_value_heads=heads), Dtypes(kv=kv)
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for source, target, parts in kv_shares(model, dtypes, Layout(prefill), Layout(decode)):
        [(layers, size, state, tail)] = parts
        assert (
            layers == list(range(model.num_layers))
            and 0 <= source < prefill
            and 0 <= target < decode
        )
        assert (state, tail) == (0, 0)
        received[target] += size * len(layers)
        sent[source] += size * len(layers)
    stored = kv_bytes_per_token(model, Layout(decode), dtypes)
    assert received == {rank: stored for rank in range(decode)}
    if decode <= heads or prefill <= heads:
        assert len(set(sent.values())) == 1  # nobody sends more than the others


def sizes(model: ModelConfig, prefill: Layout, decode: Layout) -> list[tuple[int, int, int]]:
    """(prefill rank, decode rank, bytes per token and layer) of a model whose layers
    are all alike.
    """
    shares = kv_shares(model, Dtypes(), prefill, decode)
    assert all(len(parts) == 1 for _, _, parts in shares)
    return [(source, target, parts[0][1]) for source, target, parts in shares]


def test_four_ranks_to_two_and_back() -> None:
    per_head = 2 * 128 * 2
    narrow = [
        (0, 0, 2 * per_head),
        (1, 0, 2 * per_head),
        (2, 1, 2 * per_head),
        (3, 1, 2 * per_head),
    ]
    assert sizes(LLAMA, Layout(4), Layout(2)) == narrow
    wide = [(0, 0, 2 * per_head), (0, 1, 2 * per_head), (1, 2, 2 * per_head), (1, 3, 2 * per_head)]
    assert sizes(LLAMA, Layout(2), Layout(4)) == wide


@pytest.mark.parametrize(("prefill", "decode"), [(8, 1), (1, 8), (8, 4)])
def test_a_latent_is_whole_on_every_rank(prefill: int, decode: int) -> None:
    shares = sizes(DEEPSEEK, Layout(prefill), Layout(decode))
    stored = kv_bytes_per_token(DEEPSEEK, Layout(decode), Dtypes())
    assert [target for _, target, _ in shares] == list(range(decode))
    assert all(size * DEEPSEEK.num_layers == stored for _, _, size in shares)
    assert len({source for source, *_ in shares}) == min(prefill, decode)


def test_stages_take_their_layers_from_whoever_has_them() -> None:
    prefill, decode = Layout(2, stage_layers=(20, 12)), Layout(1, stage_layers=(10, 22))
    per_head = 2 * 128 * 2
    shares = kv_shares(LLAMA, Dtypes(), prefill, decode)
    ends = [
        (source, target, parts[0][0][0], parts[0][0][-1] + 1) for source, target, parts in shares
    ]
    assert ends == [
        (0, 0, 0, 10),
        (1, 0, 0, 10),
        (0, 1, 10, 20),
        (1, 1, 10, 20),
        (2, 1, 20, 32),
        (3, 1, 20, 32),
    ]
    assert {size for _, _, size in sizes(LLAMA, prefill, decode)} == {4 * per_head}


@pytest.mark.parametrize(
    "name", ["google/gemma-3-27b-it", "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
)
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (4, 2), (2, 4), (8, 2)])
def test_every_layer_of_every_kind_arrives_on_every_rank(
    name: str, prefill: int, decode: int
) -> None:
    """Tokens, those of windows with the blocks that hold them, and states: what the decode side's
    ledger counts.
    """
    model, dtypes, size = load_model(name), Dtypes(), 16
    tokens, windows, states = Counter[int](), Counter[int](), Counter[int]()
    layers = Counter[int]()
    for _, target, parts in kv_shares(model, dtypes, Layout(prefill), Layout(decode), size):
        for part, per_token, state, tail in parts:
            assert tail in (0, -(-model.window // size) + 1) and (tail == 0 or state == 0)
            (windows if tail else tokens)[target] += per_token * len(part)
            states[target] += state * len(part)
            if target == 0:
                layers.update(part)
    groups = {
        group.kind: group.bytes_per_token for group in kv_groups(model, Layout(decode), dtypes)
    }
    ranks = range(decode)
    assert tokens == {rank: groups["full"] for rank in ranks}
    assert windows == ({rank: groups["sliding"] for rank in ranks} if "sliding" in groups else {})
    assert all(
        states[rank] == state_bytes_per_sequence(model, Layout(decode), dtypes) for rank in ranks
    )
    assert set(layers) == set(range(model.num_layers))
    assert prefill_all_but_last_token(model, "vllm_v1") == (name.startswith("Qwen"))
    assert not prefill_all_but_last_token(model, "sglang")


def test_a_chunked_window_is_no_kind_of_its_own() -> None:
    """vLLM 0.24 keeps whole sequences for such models by default, and hands them over."""
    scout = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    [(_, _, parts)] = kv_shares(scout, Dtypes(), Layout(1), Layout(1), 16)
    assert [(len(layers), tail) for layers, _, _, tail in parts] == [(scout.num_layers, 0)]
    assert not of_several_kinds(scout)


contexts = st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)])


@given(
    heads=st.sampled_from([1, 2]),
    prefill=contexts,
    decode=contexts,
    tps=st.tuples(*[st.sampled_from([4, 8])] * 2),
    latent=st.booleans(),
)
def test_ranks_that_share_tokens_get_those_that_they_hold(
    heads: int,
    prefill: tuple[int, int],
    decode: tuple[int, int],
    tps: tuple[int, int],
    latent: bool,
) -> None:
    """Token by token: what a pair moves is what both of them hold of the first tokens, by vLLM's
    dealing.
    """
    model = DEEPSEEK if latent else replace(LLAMA, num_key_value_heads=heads, head_dim=3 * 64)
    layouts = [
        Layout(tp, prefill_context=pcp, decode_context=dcp)
        for tp, (pcp, dcp) in zip(tps, (prefill, decode), strict=True)
    ]
    assume(not any(layout_problem(model, layout) for layout in layouts))
    copies = [1 if latent else layout.tp // heads for layout in layouts]
    tokens = 144  # of all cycles

    def held(layout: Layout, rank: int, copies: int) -> set[tuple[int, int]]:
        place = rank // layout.tp * layout.decode_context + rank % layout.tp % layout.decode_context
        head = 0 if latent else rank % layout.tp // copies
        return {(head, token) for token in range(tokens) if token % layout.context_ranks == place}

    per_head = (576 if latent else 2 * 3 * 64) * 2
    received: dict[int, int] = dict.fromkeys(range(layouts[1].stage_ranks), 0)
    for source, target, parts in kv_shares(model, Dtypes(), *layouts):
        [(_, size, _, _)] = parts
        both = held(layouts[0], source, copies[0]) & held(layouts[1], target, copies[1])
        assert size * tokens == len(both) * per_head
        received[target] += size * tokens
    for target, count in received.items():
        assert count == len(held(layouts[1], target, copies[1])) * per_head


def test_layers_that_choose_tokens_hand_their_index_over_too() -> None:
    """DeepSeek-V3.2 keeps a latent and an index key per token and layer; layers that share a choice
    are refused.
    """
    sparse = load_model("deepseek-ai/DeepSeek-V3.2")
    assert sparse.latent is not None and sparse.indexer is not None
    per_token = (512 + 64) * 2 + 128 + 4
    assert sizes(sparse, Layout(8), Layout(2)) == [(0, 0, per_token), (1, 1, per_token)]
    every_second = tuple(layer % 2 == 0 for layer in range(sparse.num_layers))
    shared = replace(sparse, indexer_layers=every_second)
    with pytest.raises(
        NotYetError, match="layers that share an indexer's choice are not handed over yet"
    ):
        kv_shares(shared, Dtypes(), Layout(8), Layout(2))
