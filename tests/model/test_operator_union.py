"""The union of operators: each kind has its own fields; a plug-in's older reading still works."""

import ast
from pathlib import Path

import pytest
from package import package_sources

from llmsim.model import (
    AllToAll,
    Attention,
    Collective,
    Dtypes,
    Gemm,
    Layout,
    Moe,
    Operator,
    ResidualNorm,
    StateSpace,
    load_model,
    operators,
)
from llmsim.model import operator as union

ROOT = Path(__file__).resolve().parents[2]
PLAIN = operators(load_model("Qwen/Qwen3-30B-A3B"), Layout(tp=2), Dtypes())
SHARED = Layout(tp=2, dp=2, ep=4, exchange="deepep_low_latency")
EXCHANGED = operators(load_model("Qwen/Qwen3-30B-A3B"), SHARED, Dtypes())


def test_a_field_of_another_kind_has_its_earlier_default_and_warns() -> None:
    gemm = next(op for op in PLAIN if isinstance(op, Gemm))
    for name, (owners, default) in union.FIELDS_OF_OTHERS.items():
        if hasattr(type(gemm), name) or name in gemm.__struct_fields__:
            continue
        with pytest.warns(FutureWarning, match=rf"Gemm has no {name}; match on {owners}"):
            assert getattr(gemm, name) == default
    with pytest.raises(AttributeError, match="Gemm has no attribute hue"):
        gemm.hue  # type: ignore[attr-defined]  # noqa: B018


def test_every_field_of_one_kind_is_known_to_the_others() -> None:
    base = set(Operator.__struct_fields__)
    new = {"sees", "sparse", "cut", "reduces", "kernels", "feeds_projection", "sums_hidden"}
    new |= {"feeds_ffn", "value_dim", "reads_attention", "beside", "expansion"}
    for kind in (AllToAll, Attention, Collective, Gemm, Moe, ResidualNorm, StateSpace):
        own = set(kind.__struct_fields__) - base - new
        assert own <= union.FIELDS_OF_OTHERS.keys(), kind


def test_kinds_and_blocks_say_what_an_operator_is() -> None:
    by_name = {op.name: op for op in PLAIN}
    assert by_name["moe_gate"].block == "router"
    assert by_name["o_proj"].block == "attention"
    assert isinstance(by_name["moe"], Moe)
    assert isinstance(by_name["layernorm"], ResidualNorm)
    assert [op.name for op in PLAIN if isinstance(op, Collective) and op.sums_hidden]
    assert {op.name for op in EXCHANGED if isinstance(op, AllToAll)} == {"dispatch", "combine"}


def test_nothing_compares_the_name_of_a_kind() -> None:
    """Code matches on classes: a new kind is then found by the type checker."""
    found = []
    for path in sorted(package_sources().rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Attribute):
                continue
            owner = node.left.value
            of_operator = isinstance(owner, ast.Name) and owner.id == "op"
            if node.left.attr == "kind" and of_operator:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
