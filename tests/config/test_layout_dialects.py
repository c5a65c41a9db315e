"""Both dialects of the parallel layout describe the same things, and contradictions are refused
with the rule.
"""

from itertools import combinations
from typing import Any

import pytest
from cluster_examples import instance, parsed, small, with_instance
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.cluster_file.dialect import ParallelLayout
from llmsim.config.errors import InputError


def layout(**keys: Any) -> ParallelLayout:
    return next(parsed(with_instance(**keys)).instances())[1].layout


def refusal(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        layout(**keys)
    return str(caught.value)


sizes = st.integers(min_value=1, max_value=64)


@given(sizes, sizes)
def test_the_two_dialects_agree(tp: int, pp: int) -> None:
    expected = ParallelLayout(tp * pp, tp, pp, None)
    assert layout(npu_num=tp * pp, npu_group=pp) == expected
    keys = {"num_npus": tp * pp, "tp_size": tp, "pp_size": pp}
    for two_or_three in (*combinations(keys, 2), tuple(keys)):
        assert layout(**{key: keys[key] for key in two_or_three}) == expected


@given(sizes)
def test_what_is_left_out_is_one_or_all_tensor_parallel(n: int) -> None:
    assert layout(num_npus=n) == ParallelLayout(n, n, 1, None)
    assert layout(tp_size=n) == ParallelLayout(n, n, 1, None)
    assert layout(pp_size=n) == ParallelLayout(n, 1, n, None)
    assert layout(npu_num=n) == ParallelLayout(n, n, 1, None)
    assert layout(npu_group=n) == ParallelLayout(n, 1, n, None)
    assert layout(ep_size=n) == ParallelLayout(n, n, 1, n)


def test_nothing_given_is_one_device_and_null_is_not_given() -> None:
    assert layout() == ParallelLayout(1, 1, 1, None)
    assert layout(num_npus=None, tp_size=2, pp_size=None, npu_num=None) == ParallelLayout(
        2, 2, 1, None
    )


@given(sizes, sizes, sizes)
def test_num_npus_is_the_product(num: int, tp: int, pp: int) -> None:
    if num == tp * pp:
        assert layout(num_npus=num, tp_size=tp, pp_size=pp).num_devices == num
    else:
        assert f"num_npus is {num}; it must be tp_size x pp_size = {tp} x {pp}" in refusal(
            num_npus=num, tp_size=tp, pp_size=pp
        )


@given(sizes, sizes)
def test_parts_divide_the_whole(num: int, part: int) -> None:
    for keys, rule in (
        ({"num_npus": num, "tp_size": part}, f"tp_size is {part}; it must divide num_npus"),
        ({"num_npus": num, "pp_size": part}, f"pp_size is {part}; it must divide num_npus"),
        ({"npu_num": num, "npu_group": part}, f"npu_group is {part}; it must divide npu_num"),
        (
            {"tp_size": num, "ep_size": part},
            f"ep_size is {part}; expert ranks per instance must divide tp_size",
        ),
    ):
        if num % part:
            assert rule in refusal(**keys)
        else:
            layout(**keys)


@pytest.mark.parametrize("older", ["npu_num", "npu_group"])
@pytest.mark.parametrize("newer", ["num_npus", "tp_size", "pp_size"])
def test_the_dialects_do_not_mix(older: str, newer: str) -> None:
    assert f"{older} is given together with {newer}" in refusal(**{older: 1, newer: 1})


def two_members(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    document = small()
    node = document["nodes"][0]
    node["num_instances"] = 2
    node["instances"] = [
        {**instance(document), "dp_group": "g", **keys} for keys in (first, second)
    ]
    return document


def test_members_of_a_data_parallel_group_agree() -> None:
    parsed(two_members({"tp_size": 2, "ep_size": 4}, {"num_npus": 2, "ep_size": 4}))
    parsed(two_members({"npu_num": 2}, {"tp_size": 2}))
    with pytest.raises(
        InputError, match=r"instances\[1\]\.dp_group is \"g\", whose first member has other tp_size"
    ):
        parsed(two_members({"tp_size": 2}, {"tp_size": 4}))


def test_experts_of_a_data_parallel_group_are_a_total_over_its_members() -> None:
    with pytest.raises(InputError, match=r"ep_size is 3; it is a total over the 2 members"):
        parsed(two_members({"tp_size": 2, "ep_size": 3}, {"tp_size": 2, "ep_size": 3}))
    with pytest.raises(
        InputError, match=r"ep_size is 8; expert ranks per instance \(ep_size 8 / 2 members = 4\)"
    ):
        parsed(two_members({"tp_size": 2, "ep_size": 8}, {"tp_size": 2, "ep_size": 8}))
