"""Compares the KV cache that an installed vLLM plans for the bundled models with ours, model by
model, and prints a table.

usage: python evaluation/kv_specs.py --engine-python ENV/bin/python [--only NAME]... [--output FILE]

vLLM builds the classes of each model on the meta device, without weights and without a GPU; its
layers tell their `KVCacheSpec`, which it puts into groups. Compared are window, tokens of a block
and layers of each group, and the number of blocks in 40 GiB on one device. FILE keeps what vLLM
said, as JSON (`tests/model/memory/kv_specs_of_vllm.json`).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import llmsim
from llmsim.cli.arguments import OneSentenceParser
from llmsim.config.errors import InputError
from llmsim.lowering.kv.hybrid_cache import divides, takes_indexed_blocks
from llmsim.model import Dtypes, Layout, ModelConfig, load_hardware, load_model
from llmsim.model.memory.hybrid_groups import KEEPS_STATE, kv_tables
from llmsim.model.memory.sizes import INDEXED_TOKENS, kv_bytes_per_token, state_bytes_per_sequence
from llmsim.scheduling.conformance.engine_python import check_interpreter
from llmsim.scheduling.conformance.vllm import platform as vllm_platform

WORKER = Path(__file__).parent / "kv_specs_worker.py"
PRESETS = Path(str(llmsim.__file__)).parent / "presets" / "models"
AVAILABLE = 40 << 30
"""Bytes, as the worker has them."""
BLOCK_SIZE = 16
CARD = "H200"
"""vLLM plans for a card of NVIDIA's."""
Table = tuple[int, int, int]
"""Window of a group, tokens of its block, and its layers."""


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--engine-python", type=Path, required=True, help="vLLM's interpreter.")
    parser.add_argument("--only", action="append", default=[], help="A part of a model's name.")
    parser.add_argument("--output", type=Path, help="A file for what vLLM said.")
    given = parser.parse_args()
    chosen = [
        name for name in preset_names() if not given.only or any(one in name for one in given.only)
    ]
    try:
        check_interpreter(given.engine_python)
    except InputError as error:
        parser.error(str(error))
    said: dict[str, Any] = {}
    print("| model | class | kinds of layers | blocks in 40 GiB | ours | |")
    print("| --- | --- | --- | ---: | ---: | --- |", flush=True)
    for name, theirs in zip(chosen, planned(given.engine_python, chosen), strict=True):
        said[name] = theirs
        print(row_of(name, theirs), flush=True)
    if given.output is not None:
        rows = (f"  {json.dumps(name)}: {json.dumps(theirs)}" for name, theirs in said.items())
        given.output.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return 0


def preset_names() -> list[str]:
    """The bundled models, such as "Qwen/Qwen3-8B"."""
    found = PRESETS.glob("*/*.json")
    return sorted(str(path.relative_to(PRESETS).with_suffix("")) for path in found)


def planned(python: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What that interpreter's vLLM makes of each model: its groups, or why it refuses it."""
    paths = [str(PRESETS / f"{name}.json") for name in names]
    command = [str(python), str(WORKER), str(vllm_platform.__file__), *paths]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
        if process.wait() != 0:
            errors.seek(0)
            last = " ".join(errors.read().split())[-300:]
            raise SystemExit(f"kv_specs: error: {python} ended with an error: ...{last}")


def row_of(name: str, theirs: Mapping[str, Any]) -> str:
    """A row of the table."""
    if "refused" in theirs:
        return f"| {name} | | | | | vLLM refuses it: {theirs['refused']} |"
    blocks, _ = ours_of(load_model(name), block_size_of(load_model(name), theirs))
    kinds = ", ".join(
        f"{one['layers']} {one['type'].removesuffix('Spec')} of {one['page_bytes']}"
        for one in theirs["layers"]
    )
    cells = (name, theirs["class"], kinds, theirs["blocks"], blocks, "; ".join(wrong(name, theirs)))
    return "| " + " | ".join(map(str, cells)) + " |"


def wrong(name: str, theirs: Mapping[str, Any]) -> list[str]:
    """What differs between vLLM's plan of a bundled model and ours."""
    model = load_model(name)
    found = []
    size = block_size_of(model, theirs)
    indexed = takes_indexed_blocks(model, load_hardware(CARD))
    if size != (INDEXED_TOKENS if indexed else BLOCK_SIZE):
        found.append(f"blocks of {size} tokens by default")
    blocks, tables = ours_of(model, size)
    if blocks != theirs["blocks"]:
        found.append(f"{blocks} blocks instead of {theirs['blocks']}")
    if tables and tables != tables_of(theirs):
        found.append(f"tables {tables} instead of {tables_of(theirs)}")
    return found


def block_size_of(model: ModelConfig, theirs: Mapping[str, Any]) -> int:
    """Tokens of vLLM's blocks before a state makes them larger, which is ours to find."""
    return BLOCK_SIZE if model.linear is not None else int(theirs["block_size"])


def ours_of(model: ModelConfig, block_size: int) -> tuple[int, list[Table]]:
    """Blocks in 40 GiB of one device, and the tables that share them; none: blocks hold whole
    sequences.
    """
    layout, dtypes = Layout(1), Dtypes()
    if model.keeps_states_alone:
        return AVAILABLE // state_bytes_per_sequence(model, layout, dtypes), []
    if not divides(model):
        return AVAILABLE // (kv_bytes_per_token(model, layout, dtypes) * block_size), []
    tables = kv_tables(model, layout, dtypes, block_size)
    rows = zip(tables.windows, tables.block_sizes, tables.layers, strict=True)
    # A table of states has a block for each of them, whatever its tokens.
    return AVAILABLE // tables.block_bytes, sorted(
        (window, 0 if window == KEEPS_STATE else block, layers) for window, block, layers in rows
    )


def tables_of(theirs: Mapping[str, Any]) -> list[Table]:
    """vLLM's groups in the same form."""
    return sorted(
        (KEEPS_STATE, 0, one["layers"])
        if one["type"] == "MambaSpec"
        else (one["window"], one["block_size"], one["layers"])
        for one in theirs["groups"]
    )


if __name__ == "__main__":
    sys.exit(main())
