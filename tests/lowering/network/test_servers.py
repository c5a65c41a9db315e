"""Collectives that cross servers at the rate inside a server are named in a note, with what to
write.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.presets import PRESETS_DIR
from tests.lowering.clusters import cluster, lowered, model


def server_notes(document: dict[str, Any]) -> list[str]:
    return [note for note in lowered(document).notes if "name a topology" in note]


def test_tensor_parallelism_beyond_a_server_names_the_group_the_node_and_the_card(
    tmp_path: Path,
) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)
    (note,) = server_notes(cluster(path, tp_size=16, num_npus=16, links=450))
    for word in (
        "nodes[0].instances[0]",
        "16 H100 devices of node 0",
        "2 servers of 8",
        "link_bw 450 GB/s",
        "50 GB/s a device",
        "a last entry",
        "name a topology",
    ):
        assert word in note
    assert server_notes(cluster(path, tp_size=8, num_npus=8, links=450)) == []
    assert server_notes(cluster(path, tp_size=16, num_npus=16, links=450, hardware="GB200")) == []


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16]), pp=st.sampled_from([1, 2, 4]), single=st.booleans(),
    hardware=st.sampled_from(["H100", "GB200", "B200", "TPU v6e"]),
)  # fmt: skip
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_note_appears_exactly_where_several_servers_have_no_rate_between_them(
    tmp_path_factory: pytest.TempPathFactory, tp: int, pp: int, single: bool, hardware: str
) -> None:
    path = model(tmp_path_factory.mktemp("model"), heads=16, kv_heads=16)
    links = 450 if single else [450, 50]
    found = server_notes(
        cluster(path, tp_size=tp, pp_size=pp, num_npus=tp * pp, links=links, hardware=hardware)
    )
    most = {"H100": 8, "B200": 8, "GB200": 72, "TPU v6e": 1000}[hardware]
    assert len(found) == (tp * pp > most and single), found


@pytest.mark.parametrize(
    ("links", "said"), [(450, True), ([450, 450], True), ([450, 50], False), ([50, 400], True)]
)
def test_ranks_on_several_nodes_need_a_rate_between_nodes(
    tmp_path: Path, links: Any, said: bool
) -> None:
    document = cluster(
        model(tmp_path, experts=8), members=2, nodes=2, dp_group="a", ep_size=4, links=links
    )
    notes = server_notes(document)
    assert len(notes) == said
    if said:
        for word in ('dp_group "a" are on the nodes 0, 1', "50 GB/s a device", "last entry"):
            assert word in notes[0]


def test_a_card_without_a_known_network_keeps_the_rate_of_the_file_and_a_note(
    tmp_path: Path,
) -> None:
    """So does an algorithm that the user names."""
    sheet = json.loads((PRESETS_DIR / "hardware" / "h100_sxm.json").read_text())
    del sheet["network_card_bytes_per_s"], sheet["sources"]["network_card_bytes_per_s"]
    own = tmp_path / "card.json"
    own.write_text(json.dumps(sheet))
    path = model(tmp_path, heads=16, kv_heads=16)
    unknown = cluster(path, tp_size=16, num_npus=16, links=450, hardware=str(own))
    named = cluster(
        path, tp_size=16, num_npus=16, links=450, all_reduce_implementation="halvingDoubling"
    )
    for document in (unknown, named):
        (note,) = server_notes(document)
        assert "450 GB/s, the rate inside a server, but a server joins 8" in note


def test_ranks_of_a_dense_model_that_do_not_talk_are_not_named(tmp_path: Path) -> None:
    assert server_notes(cluster(model(tmp_path), members=2, nodes=2, dp_group="a", links=450)) == []
