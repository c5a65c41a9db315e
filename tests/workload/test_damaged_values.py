"""Values that a format cannot take are refused where they stand, whatever the decoder
made of them.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.workload.dataset import load_dataset
from llmsim.workload.formats import read_trace
from llmsim.workload.formats.batches import Batch

PAYLOAD = (
    '{"timestamp": 1, "input_length": 3, "output_length": 2}\n{"timestamp": 2, "payload": '
    '{"prompt": "hi", %s}}\n'
)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_trace(path, known_models=(), granularity=16)
    assert str(error.value).startswith(str(path))
    return str(error.value)


@pytest.mark.parametrize(
    "value", ["1e999", "-1", "1.5", "1e18", "true", '"many"', "[3]", "9" * 400]
)
def test_an_answer_limit_must_be_a_count(value: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(PAYLOAD % f'"max_tokens": {value}')
    assert ':2:1: "payload.max_tokens" is' in refused(path) or "not valid JSON" in refused(path)


def test_an_answer_limit_may_be_written_as_a_float(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(PAYLOAD % '"max_completion_tokens": null, "max_tokens": 12.0')
    made = read_trace(tmp_path / "t", known_models=(), granularity=0).workload
    assert made.output_tokens.tolist() == [2, 12]


@pytest.mark.parametrize(
    ("priority", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**63), False)]
)
def test_a_priority_has_32_bits(priority: int, fits: bool, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 3, "output_length": 2, "priority": priority}
    (tmp_path / "t").write_text(json.dumps(row) + "\n")
    if fits:
        made = read_trace(tmp_path / "t", known_models=(), granularity=0).workload
        assert made.priority is not None and made.priority.tolist() == [priority]
    else:
        assert '"priority"' in refused(tmp_path / "t")


@pytest.mark.parametrize("text", [b'{"":"\xac"}', b'{"a":"\x01"}', b'{"a":' + b"9" * 5000 + b"}"])
def test_what_no_decoder_looks_at_does_not_hide_where_a_fault_is(
    text: bytes, tmp_path: Path
) -> None:
    """Unused values of a list may hold bytes that Python's json refuses; the place of a later fault
    is still said.
    """
    path = tmp_path / "t"
    path.write_bytes(
        b'[{"conversations":[], "unused":' + text + b'},\n {"conversations":[{"from":"human"}]}]'
    )
    assert f"{path}:2:" in refused(path) or f"{path}:1:" in refused(path)


@given(
    st.lists(st.text(alphabet='a"\\{}[]:, \né', max_size=8), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_positions_of_records_are_where_they_begin(texts: list[str], blanks: int) -> None:
    between = "," + "\n" * blanks + " " * blanks
    text = between.join(
        json.dumps({"a": each, "b": [{"c": each}]}, ensure_ascii=False) for each in texts
    )
    batch = Batch([{}] * len(texts), text.encode(), 7, 5)
    lines = ("\n" * 6 + " " * 4 + text).split("\n")
    positions = batch.positions()
    assert len(positions) == len(texts)
    assert all(lines[line - 1][column - 1 :].startswith('{"a"') for line, column in positions)


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "9" * 30, "-3", "a"])
def test_an_id_that_is_no_plain_number_is_a_text(name: str, tmp_path: Path) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n"
    (tmp_path / "t").write_text(
        f"{header}0,40,2,s,{name}|{name}\n1,40,2,s,{name}|7\n", encoding="utf-8"
    )
    made = read_trace(tmp_path / "t", known_models=(), granularity=16).workload
    first, second = (made.keys[low : low + 2].tolist() for low in made.key_offsets[:2].tolist())
    assert first[0] == second[0] and first[1] != second[1]


@pytest.mark.parametrize(
    "text",
    [
        "n=10**12,rate=1",
        "n=1000000000000,rate=1",
        "n=0,rate=1",
        "n=-0,rate=1",
        "n=5,rate=0",
        "n=5,rate=-0.0",
        "n=5,rate=1e-300",
        "n=5,rate=nan",
        "n=5,rate=-inf",
        "n=5,rate=1,arrivals=gamma:cv=1e-300",
        "n=5,rate=1,arrivals=diurnal:period_s=1e-300",
        "n=5,rate=1,arrivals=spike:every_s=1e-300:length_s=1:factor=2",
        "n=5,arrivals=burst:size=1:every_s=1e-300",
        "n=5,arrivals=burst:size=1:every_s=1e12",
        "n=99999999,rate=1000,calls=fixed:1000",
        "clients,n=5,rate=1e-308,clients=2",
        "clients,n=5,rate=1,clients=2,cv=1e-300",
        "agentic,n=99999999,rate=1000,calls=fixed:1000",
        "rollout,prompts=99999999,samples=99999999",
        "agentic,n=5,rate=1e-308",
    ],
)
def test_absurd_specifications_are_one_sentence(text: str) -> None:
    lengths = "" if text.startswith(("agentic", "rollout")) else ",input=fixed:5,output=fixed:2"
    with pytest.raises(InputError) as error:
        load_dataset(f"synthetic:{text}{lengths}", known_models=(), granularity=16)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
