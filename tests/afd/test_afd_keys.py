"""Keys of attention and FFN instances: what is missing, of the wrong type, out of range or
impossible is refused in one sentence with its field.
"""

from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim
from llmsim.config.errors import LlmsimError

MODEL = "Qwen/Qwen3-30B-A3B"
TRACE = "synthetic:n=1,rate=1,input=8,output=2"


def pair(**keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An attention instance with some keys, and an FFN instance."""
    return attention(MODEL, **keys), ffn(MODEL)


def without(instance: dict[str, Any], *names: str) -> dict[str, Any]:
    """An instance that lacks some keys."""
    return {name: value for name, value in instance.items() if name not in names}


DENSE, STATES = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-Next-80B-A3B-Instruct"
CASES = {
    "no group": ((without(attention(MODEL), "afd_group"), ffn(MODEL)), "names no afd_group"),
    "group of another role": (({**attention(MODEL), "pd_type": None},), "afd_group"),
    "lanes of another role": (
        (without({**attention(MODEL), "pd_type": None, "afd_micro_batches": 2}, "afd_group"),),
        "afd_micro_batches",
    ),
    "null group": (pair(afd_group=None), "names no afd_group"),
    "type of group": (pair(afd_group=3), "afd_group is 3"),
    "blank group": (pair(afd_group=" "), "expected a name that is not blank"),
    "type of lanes": (pair(afd_micro_batches="2"), "afd_micro_batches"),
    "switch for lanes": (pair(afd_micro_batches=True), "afd_micro_batches is true"),
    "half a lane": (pair(afd_micro_batches=1.5), "afd_micro_batches is 1.5"),
    "list of lanes": (pair(afd_micro_batches=[2]), "afd_micro_batches is [2]"),
    "no lanes": (pair(afd_micro_batches=0), "afd_micro_batches"),
    "fewer than no lanes": (pair(afd_micro_batches=-1), "expected a whole number from 1 to 16"),
    "many lanes": (pair(afd_micro_batches=17), "afd_micro_batches"),
    "dispatch": (pair(afd_dispatch="sparse"), "afd_dispatch"),
    "case of dispatch": (pair(afd_dispatch="Dense"), 'expected one of "dense", "routed"'),
    "type of dispatch": (pair(afd_dispatch=1), "afd_dispatch"),
    "dispatch of another role": (
        (without({**attention(MODEL), "pd_type": None, "afd_dispatch": "dense"}, "afd_group"),),
        "afd_dispatch",
    ),
    "dispatch differs": (
        (attention(MODEL, afd_dispatch="routed"), ffn(MODEL, afd_dispatch="dense")),
        "afd_dispatch is dense",
    ),
    "attention over no ranks": ((attention(MODEL, 0), ffn(MODEL)), "attn_tp_size is 0"),
    "type of attention's ranks": (
        (attention(MODEL, "1"), ffn(MODEL)),  # type: ignore[arg-type]
        'attn_tp_size is "1"',
    ),
    "attention over three ranks": ((attention(MODEL, 3), ffn(MODEL)), "tp must divide"),
    "no attention engines": ((attention(MODEL, 1, 0), ffn(MODEL)), "attn_dp_size is 0"),
    "half an attention engine": (
        (attention(MODEL, 1, 1.5), ffn(MODEL)),  # type: ignore[arg-type]
        "attn_dp_size is 1.5",
    ),
    "attention's ranks and devices": (
        (attention(MODEL, 2, num_npus=3), ffn(MODEL)),
        "num_npus is 3",
    ),
    "two sizes of attention": ((attention(MODEL, 2, tp_size=4), ffn(MODEL)), "remove one of them"),
    "experts of attention": (pair(ep_size=2), "ep_size is given"),
    "FFN over no ranks": ((attention(MODEL), ffn(MODEL, 0)), "ffn_tp_size is 0"),
    "type of FFN's ranks": (
        (attention(MODEL), ffn(MODEL, 1, "2")),  # type: ignore[arg-type]
        'ffn_ep_size is "2"',
    ),
    "experts over no ranks": ((attention(MODEL), ffn(MODEL, 1, 0)), "ffn_ep_size is 0"),
    "expert cut by five": ((attention(MODEL), ffn(MODEL, 5)), "must divide"),
    "role": (pair(pd_type="experts"), "pd_type"),
    "type of role": (pair(pd_type=1), "pd_type is 1"),
    "list of roles": (pair(pd_type=["attention"]), "pd_type is"),
    "decode in a group": (pair(pd_type="decode"), 'afd_group is "one", but pd_type is "decode"'),
    "prefill in a group": (pair(pd_type="prefill"), 'afd_group is "one", but pd_type is'),
    "prefill of another model": (
        ({"model_name": DENSE, "hardware": "H100", "pd_type": "prefill"}, *pair()),
        'no instance of meta-llama/Llama-3.1-8B has the pd_type "decode"',
    ),
    "a second group without FFN": (
        (*pair(), attention(MODEL, afd_group="two")),
        'afd_group is "two", but no instance',
    ),
    "layers of stages differ": (
        (
            attention(MODEL, pp_size=2, pp_layers=[20, 28]),
            ffn(MODEL, pp_size=2, pp_layers=[28, 20]),
        ),
        "pp_layers differs",
    ),
    "rows shared out by the FFN alone": (
        (attention(MODEL, 2), ffn(MODEL, 1, 2, enable_sequence_parallelism=True)),
        "is true, but false of the attention instances",
    ),
    "context ranks": (pair(decode_context_parallel_size=2), "must be a multiple of 2 x num_key"),
    "type of context ranks": (pair(decode_context_parallel_size="2"), 'parallel_size is "2"'),
    "no context ranks": (pair(decode_context_parallel_size=0), "parallel_size is 0"),
    "context ranks of an FFN": (
        (attention(MODEL, 8), ffn(MODEL, 1, 8, decode_context_parallel_size=2)),
        "keeps no KV that ranks could share",
    ),
    "tokens of prompts shared out": (
        pair(prefill_context_parallel_size=2),
        'only an instance with the pd_type "prefill" shares out',
    ),
    "weights elsewhere": (pair(placement={"blocks": []}), "outside of its devices, whose links"),
    "operators elsewhere": (pair(operator_devices={"lm_head": "cpu"}), "give the attention more"),
    "attention elsewhere": (pair(enable_attn_offloading=True), "outside of its devices"),
    "experts elsewhere": (
        (attention(MODEL), ffn(MODEL, placement={"default": {"weights": "cpu"}})),
        "give the ffn more or larger devices",
    ),
    "too large for the FFN's devices": (
        (attention("deepseek-ai/DeepSeek-V3"), ffn("deepseek-ai/DeepSeek-V3")),
        "does not fit",
    ),
    "no FFN": ((attention(MODEL),), 'no instance of that afd_group has the pd_type "ffn"'),
    "no attention": ((ffn(MODEL),), 'has the pd_type "attention"'),
    "two models": ((attention(MODEL), ffn(DENSE)), "model_name"),
    "FFN sizes of attention": (pair(ffn_tp_size=2), "ffn_tp_size"),
    "attention sizes of FFN": ((attention(MODEL), ffn(MODEL, attn_dp_size=2)), "attn_dp_size"),
    "data-parallel group": (pair(dp_group="a"), "dp_group"),
    "devices of an FFN": ((attention(MODEL), ffn(MODEL, 1, 2, num_npus=3)), "num_npus"),
    "stages": ((attention(MODEL, pp_size=2), ffn(MODEL)), "pp_size"),
    "lanes differ": (
        (attention(MODEL, afd_micro_batches=2), ffn(MODEL, afd_micro_batches=3)),
        "afd_micro_batches",
    ),
    "unlike attention": (
        (attention(MODEL), attention(MODEL, 2), ffn(MODEL)),
        "instances of one role must be alike",
    ),
    "experts": ((attention(MODEL), ffn(MODEL, 1, 3)), "ep"),
    "scheduler": (pair(scheduler="vllm"), "scheduler"),
    "states": ((attention(STATES), ffn(STATES)), "keeps states"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    instances, said = CASES[name]
    with pytest.raises(LlmsimError) as refused:
        llmsim.run(written(tmp_path, cluster(*instances)), TRACE)
    message = str(refused.value)
    assert said in message
    assert message.count("c.json") == 1
    assert "\n" not in message


def test_an_ffn_keeps_no_kv(tmp_path: Path) -> None:
    result = llmsim.run(written(tmp_path, cluster(*pair())), TRACE)
    ledgers = [
        {line["label"]: line["bytes"] for line in group["ledger"]}
        for group in result.summary["kv_cache"]
    ]
    assert not any("KV cache" in label for label in ledgers[1])
    assert any("KV cache" in label for label in ledgers[0])
    assert result.summary["kv_cache"][1]["capacity_tokens"] == 0
    assert ledgers[1]["weights"] < -20 * 10**9 < ledgers[0]["weights"] < 0
    assert sum(ledgers[0].values()) == sum(ledgers[1].values()) == 0


def test_prompts_from_a_prefill_instance(tmp_path: Path) -> None:
    prefill = {"model_name": MODEL, "hardware": "H100", "tp_size": 2, "pd_type": "prefill"}
    result = llmsim.run(written(tmp_path, cluster(prefill, *pair())), TRACE)
    assert result.requests["prefill_group"].tolist() == [0]
    assert result.requests["group"].tolist() == [1]
    assert result.requests["kv_transfer_bytes"].tolist()[0] > 0
