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
    "type of group": (pair(afd_group=3), "afd_group"),
    "type of lanes": (pair(afd_micro_batches="2"), "afd_micro_batches"),
    "no lanes": (pair(afd_micro_batches=0), "afd_micro_batches"),
    "many lanes": (pair(afd_micro_batches=17), "afd_micro_batches"),
    "dispatch": (pair(afd_dispatch="sparse"), "afd_dispatch"),
    "type of dispatch": (pair(afd_dispatch=1), "afd_dispatch"),
    "role": (pair(pd_type="experts"), "pd_type"),
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
    "scheduler": (pair(scheduler="orca"), "scheduler"),
    "states": ((attention(STATES), ffn(STATES)), "keeps states"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    instances, said = CASES[name]
    with pytest.raises(LlmsimError) as refused:
        llmsim.run(written(tmp_path, cluster(*instances)), TRACE)
    message = str(refused.value)
    assert said in message
    assert "c.json" in message
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
