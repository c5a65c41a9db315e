"""Runs of engines on AMD's cards, whose collectives are priced by the cards' own links."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.api.checked.ineffective import unused_quick_reduce
from llmsim.config.errors import InputError
from tests.lowering.clusters import check_folded_is_expanded, cluster, deployed, lowered, model

TP4 = {"hardware": "MI300X", "tp_size": 4, "num_npus": 4, "max_num_batched_tokens": 4096}
QUICK = {"quick_reduce_quantization": "INT4"}


def amd(folder: Path, links: float = 448, **instance: Any) -> dict[str, Any]:
    stated = {"link_bw": links, "link_latency": 1000}
    return cluster(model(folder, heads=32), **TP4, **instance) | stated


def reduction(document: dict[str, Any], **options: Any) -> Any:
    (group,) = lowered(document, **options).groups
    return next(one.cost for one in group.placed if one.cost.name == "all_reduce")


def test_cards_on_links_of_their_own_have_vllms_kernels_and_rccl(tmp_path: Path) -> None:
    """As stated, on a topology of pairs, and on slower links; the engine's ring prices a switch."""
    stated = reduction(amd(tmp_path))
    on_pairs = amd(tmp_path) | {"topology": "mi300x_8"}
    routed = reduction(on_pairs)
    assert stated.source.startswith("NCCL model of mi300x, all_reduce by vLLM ")
    assert stated.source == routed.source and (stated.ps == routed.ps).all()
    slower = reduction(amd(tmp_path, links=100))
    assert slower.source.startswith("NCCL model of mi300x on links of 100 GB/s and 1000 ns, ")
    assert (slower.ps[1:] > stated.ps[1:]).all()
    switched = amd(tmp_path) | {"topology": "dgx_h100"}
    assert reduction(switched).source.startswith("engine, ring")
    assert reduction(amd(tmp_path), collectives="links").source.startswith("engine, ring")


def test_the_quick_all_reduce_takes_large_vectors_alone(tmp_path: Path) -> None:
    """From 2 MiB on among four: 512 tokens of 2,048 numbers in 16 bits."""
    plain, none, quick = (
        reduction(amd(tmp_path, **options))
        for options in ({}, {"quick_reduce_quantization": "NONE"}, QUICK)
    )
    assert "quick two-shot INT4" in quick.source and (plain.ps == none.ps).all()
    assert (quick.ps[:512] == plain.ps[:512]).all() and quick.ps[-1] < 0.6 * plain.ps[-1]
    slow = reduction(amd(tmp_path, **QUICK, quick_reduce_cast_bf16_to_fp16=False))
    assert (slow.ps[:4096] == plain.ps[:4096]).all()  # in bfloat16 from 16 MiB on
    assert quick.ps[4096] < slow.ps[4096] < plain.ps[4096]
    floats = reduction(amd(tmp_path, **QUICK, quick_reduce_cast_bf16_to_fp16=False, dtype="fp16"))
    assert (floats.ps == quick.ps).all()


@pytest.mark.parametrize("topology", [None, "mi300x_8"])
def test_folded_is_expanded(tmp_path: Path, topology: str | None) -> None:
    document = amd(tmp_path, **QUICK, quick_reduce_min_size_bytes_mb=0)
    check_folded_is_expanded(document if topology is None else document | {"topology": topology})


def test_collectives_of_rails_over_two_servers_of_pairs(tmp_path: Path) -> None:
    """Sixteen ranks take the network cards, and no quick all-reduce."""
    path = model(tmp_path, heads=32, kv_heads=16)
    document = cluster(path, links=448, **(TP4 | {"tp_size": 16, "num_npus": 16}), **QUICK)
    source = reduction(document).source
    assert "2 servers" in source and "quick" not in source


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quick_reduce_quantization": "INT3"}, "is INT3, which vllm-0.24 does not have"),
        ({"quick_reduce_quantization": "INT5"}, "quick_reduce_quantization"),
        (
            {"quick_reduce_min_size_bytes_mb": 9, "quick_reduce_max_size_bytes_mb": 8},
            "quick_reduce_min_size_bytes_mb is 9, more than the largest vector",
        ),
        ({"quick_reduce_max_size_bytes_mb": 0}, "quick_reduce_max_size_bytes_mb"),
        (
            {"scheduler": "sglang", "quick_reduce_min_size_bytes_mb": 1},
            "quick_reduce_min_size_bytes_mb is vLLM's, not SGLang's",
        ),
    ],
)
def test_what_the_engine_would_refuse_is_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        lowered(amd(tmp_path, **options))


def test_both_engines_have_it(tmp_path: Path) -> None:
    vllm = reduction(amd(tmp_path, **QUICK, engine_profile="vllm-0.33"))
    sglang = reduction(amd(tmp_path, **QUICK, engine_profile="sglang-0.5"))
    assert "quick two-shot INT4" in vllm.source and "quick two-shot INT4" in sglang.source
    assert np.array_equal(vllm.ps[-10:], sglang.ps[-10:])


@pytest.mark.parametrize(
    ("instance", "sentence"),
    [
        ({"hardware": "H100", **QUICK}, "quick_reduce_quantization INT4 changes nothing"),
        ({**QUICK, "quick_reduce_min_size_bytes_mb": 1024}, "INT4 changes nothing"),
        (
            {"quick_reduce_min_size_bytes_mb": 0},
            "quick_reduce_min_size_bytes_mb changes nothing: quick_reduce_quantization is NONE",
        ),
        (QUICK, None),
        ({}, None),
    ],
)
def test_what_changes_nothing_is_said(
    tmp_path: Path, instance: dict[str, Any], sentence: str | None
) -> None:
    keys = {"links": 448} | TP4 | instance
    document = cluster(model(tmp_path, heads=32), **keys)
    notes = list(unused_quick_reduce(deployed(document), lowered(document)))
    assert len(notes) == (sentence is not None)
    assert sentence is None or sentence in notes[0]
