"""What can be wrong with the file itself, and where the message says it is."""

import json
import os
from pathlib import Path

import pytest
from cluster_examples import full, parsed, small, with_instance
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config import load_cluster, parse_cluster
from llmsim.config.cluster_file.json_positions import entries, field_path, line_of
from llmsim.config.errors import InputError


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_cluster(text, "c.json")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def load_message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    return str(caught.value)


@pytest.mark.parametrize("line", range(1, len(json.dumps(full(), indent=1).splitlines()), 7))
def test_malformed_json_names_line_and_column(line: int) -> None:
    lines = json.dumps(full(), indent=1).splitlines()
    lines[line] = "  @" + lines[line]
    assert message("\n".join(lines)).startswith(f"c.json:{line + 1}:3: not valid JSON: ")


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "true"])
def test_a_root_that_is_no_object(text: str) -> None:
    found = message(text)
    assert f"the file holds {text}; expected an object with link_bw, link_latency, nodes" in found


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_not_json(constant: str) -> None:
    text = f'{{"description": "a \\"{constant}\\" in quotes",\n  "link_bw": {constant}}}'
    assert message(text) == f"c.json:2:14: {constant} is not JSON; expected a finite number"


def test_a_number_that_overflows_to_infinity() -> None:
    assert "link_bw is Infinity; expected a number" in message('{"link_bw": 1e999}')


def test_numbers_and_nesting_beyond_reason() -> None:
    assert "thousands of digits" in message('{"link_bw": ' + "9" * 5000 + "}")
    assert "nested too deeply" in message('{"nodes": ' + "[" * 100_000)
    assert "nested too deeply" in message('{"nodes": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_duplicate_keys_name_both_lines() -> None:
    text = json.dumps(small(), indent=1).replace(
        '"mem_size": 80,', '"mem_size": 80,\n "mem_size": 40,'
    )
    line = next(i for i, row in enumerate(text.splitlines(), 1) if '"mem_size": 40' in row)
    place = f"c.json:{line}: nodes[0].instances[0].npu_mem.mem_size"
    assert message(text) == f"{place} is given twice (first on line {line - 1}); keep one of them"


def test_files_that_are_no_files(tmp_path: Path) -> None:
    assert "is a directory" in load_message(tmp_path)
    (tmp_path / "near.json").write_text("{}")
    absent = load_message(tmp_path / "absent.json")
    assert "does not exist" in absent
    assert "near.json" in absent
    for name in ("near.yaml", "near.yml", "near.txt"):
        (tmp_path / name).write_text("{}")
    absent = load_message(tmp_path / "absent.yaml")
    assert "(its folder holds near.json, near.yaml, near.yml)" in absent
    assert "cannot be read" in load_message(tmp_path / ("x" * 5000))
    assert "cannot be read" in load_message(tmp_path / "near.json" / "below.json")
    assert "cannot be read" in load_message(Path("a\0b"))
    assert "is a device" in load_message(Path("/dev/null"))
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert "cannot be read" in load_message(loop)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "cannot be read (Permission denied)" in load_message(path)


@pytest.mark.parametrize("content", [b"", b"  \n\t", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(content)
    assert load_message(path) == f"{path} is empty; expected a JSON or YAML object"


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(b'{\n "description": "caf\xe9"}')
    assert load_message(path) == f"{path}:2: byte 0xe9 is not UTF-8; save the file as UTF-8"
    path.write_text(json.dumps(small()), encoding="utf-16")
    assert "is not UTF-8" in load_message(path)
    path.write_text(json.dumps(small()), encoding="utf-8-sig")
    assert load_cluster(path).path == str(path)


def test_the_first_error_counts_the_others() -> None:
    document = with_instance(model_name=3, hardware=3, dtype="x")
    assert message(json.dumps(document)).endswith(" (and 2 more problems)")
    document = with_instance(model_name=3)
    assert "more problem" not in message(json.dumps(document))


def test_an_unknown_key_comes_before_what_it_leaves_missing() -> None:
    document = small()
    memory = document["nodes"][0]["cpu_mem"]
    memory["mem_sise"] = memory.pop("mem_size")
    assert 'mem_sise is not a known key (did you mean "mem_size"?) (and 1 more problem)' in message(
        json.dumps(document)
    )


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [("num_gpus", "num_npus"), ("gpu", "hardware"), ("quantization", "dtype")],
)
def test_names_of_other_tools_are_translated(foreign: str, ours: str) -> None:
    assert f'{foreign} is not a known key (did you mean "{ours}"?)' in message(
        json.dumps(with_instance(**{foreign: 1}))
    )


def test_counts_must_match_the_lists() -> None:
    document = small()
    document["num_nodes"] = 2
    assert message(json.dumps(document)) == "c.json:1: num_nodes is 2, but nodes has 1 entries"
    document = small()
    document["nodes"][0]["num_instances"] = 3
    assert "nodes[0].num_instances is 3, but instances has 1 entries" in message(
        json.dumps(document)
    )
    del document["num_nodes"], document["nodes"][0]["num_instances"]
    parsed(document)


def test_links_per_dimension() -> None:
    document = small() | {"link_bw": [1, 2], "link_latency": [1, 2, 3]}
    assert "link_latency has 3 entries, but link_bw has 2" in message(json.dumps(document))
    document = small() | {"link_bw": [1, -2]}
    assert "link_bw[1] is -2; expected a number from 0.001" in message(json.dumps(document))


def test_lists_that_are_empty() -> None:
    assert "nodes is []" in message(json.dumps(small() | {"nodes": []}))
    assert "link_bw is []" in message(json.dumps(small() | {"link_bw": []}))
    document = small()
    del document["nodes"][0]["num_instances"]
    document["nodes"][0]["instances"] = []
    assert "nodes[0].instances is empty" in message(json.dumps(document))


def test_placement_rules() -> None:
    def place(**keys: object) -> str:
        return message(json.dumps(with_instance(placement=keys)))

    assert 'default.weights is "cxl:0", but the cluster has no cxl_mem' in place(
        default={"weights": "cxl:0"}
    )
    assert "the range 5-3 ends before it begins" in place(blocks=[{"blocks": "0,5-3"}])
    assert '"npu", "cpu" or "cxl:<device number>"' in place(layers={"lm_head": {"weights": "gpu"}})
    document = full()
    document["cxl_mem"]["num_devices"] = 1
    assert 'weights is "cxl:1", but cxl_mem has num_devices 1: "cxl:0" to "cxl:0"' in message(
        json.dumps(document)
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, 0, 1, 3]))
def test_the_scanner_sees_every_field_that_the_decoder_sees(
    value: object, indent: int | None
) -> None:
    def walk(node: object, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
        members = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        found = []
        for key, inner in members:
            found += [(*here, key), *walk(inner, (*here, key))]
        return found

    text = json.dumps(value, indent=indent)
    assert [location for location, _ in entries(text)] == walk(value)


def test_lines_are_those_of_the_text() -> None:
    text = json.dumps(full(), indent=2)
    rows = text.splitlines()
    for location, _ in entries(text):
        if isinstance(location[-1], str):
            assert f'"{location[-1]}"' in rows[line_of(text, location) - 1]
    assert line_of(text, ("nodes", 0, "absent")) == line_of(text, ("nodes", 0))


def test_field_paths_quote_odd_keys() -> None:
    assert field_path(("nodes", 0, "power", "npu", "RTX 4090")) == 'nodes[0].power.npu["RTX 4090"]'


@given(st.binary(max_size=200))
def test_no_bytes_cause_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_cluster(path)


@given(json_values)
def test_no_value_causes_a_traceback(value: object) -> None:
    for document in (
        value,
        small() | {"nodes": value},
        small() | {"engine": value},
        with_instance(placement=value),
    ):
        try:
            parsed(document)
        except InputError as error:
            assert str(error).startswith("c.json")
