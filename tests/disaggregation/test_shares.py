"""Which KV goes from which rank to which, between any two layouts."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.lowering.handover import kv_shares
from llmsim.model import Dtypes, Layout, load_model
from llmsim.model.sizes import kv_bytes_per_token

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
    for source, target, first, end, count in kv_shares(model, dtypes, Layout(prefill), Layout(decode)):
        assert (first, end) == (0, model.num_layers) and 0 <= source < prefill and 0 <= target < decode
        received[target] += count * (end - first)
        sent[source] += count * (end - first)
    stored = kv_bytes_per_token(model, Layout(decode), dtypes)
    assert received == {rank: stored for rank in range(decode)}
    if decode <= heads or prefill <= heads:
        assert len(set(sent.values())) == 1  # nobody sends more than the others


def test_four_ranks_to_two_and_back() -> None:
    per_head = 2 * 128 * 2
    narrow = [(0, 0, 2 * per_head), (1, 0, 2 * per_head), (2, 1, 2 * per_head), (3, 1, 2 * per_head)]
    assert [(a, b, count) for a, b, _, _, count in kv_shares(LLAMA, Dtypes(), Layout(4), Layout(2))] == narrow
    wide = [(0, 0, 2 * per_head), (0, 1, 2 * per_head), (1, 2, 2 * per_head), (1, 3, 2 * per_head)]
    assert [(a, b, count) for a, b, _, _, count in kv_shares(LLAMA, Dtypes(), Layout(2), Layout(4))] == wide


@pytest.mark.parametrize(("prefill", "decode"), [(8, 1), (1, 8), (8, 4)])
def test_a_latent_is_whole_on_every_rank(prefill: int, decode: int) -> None:
    shares = kv_shares(DEEPSEEK, Dtypes(), Layout(prefill), Layout(decode))
    stored = kv_bytes_per_token(DEEPSEEK, Layout(decode), Dtypes())
    assert [target for _, target, *_ in shares] == list(range(decode))
    assert all(count * (end - first) == stored for _, _, first, end, count in shares)
    assert len({source for source, *_ in shares}) == min(prefill, decode)


def test_stages_take_their_layers_from_whoever_has_them() -> None:
    prefill, decode = Layout(2, stage_layers=(20, 12)), Layout(1, stage_layers=(10, 22))
    per_head = 2 * 128 * 2
    shares = [share[:4] for share in kv_shares(LLAMA, Dtypes(), prefill, decode)]
    assert shares == [(0, 0, 0, 10), (1, 0, 0, 10), (0, 1, 10, 20), (1, 1, 10, 20), (2, 1, 20, 32), (3, 1, 20, 32)]
    assert {share[4] for share in kv_shares(LLAMA, Dtypes(), prefill, decode)} == {4 * per_head}
