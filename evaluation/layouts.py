"""Runs every legal layout of up to 16 devices, of several models, folded and expanded, and the
command astra-sim on the traces of a step, without and with a drafter; counts those that differ,
and those that refuse the drafter.

usage: python evaluation/layouts.py [--shape NAME]

A few minutes. The tests run one layout of each structure
(tests/lowering/layout/test_every_layout.py); what makes two layouts alike, the models, and how keys
of a cluster file lead to a layout are in tests/lowering/layout/legal.py.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from llmsim.cli.arguments import OneSentenceParser
from llmsim.config.errors import LlmsimError
from llmsim.model import Layout, load_model
from tests.engine.command import build_command
from tests.lowering.clusters import model
from tests.lowering.layout.legal import DRAFTS, SHAPES, check_graph, check_layout, legal, structure


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, help="this model alone")
    chosen = parser.parse_args().shape
    print(
        "| model | layouts | structures | folded is not expanded | traces take another time "
        "| with a drafter | drafter refused | seconds |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in [chosen] if chosen else SHAPES:
            different += _shape(Path(folder), name)
    return int(different > 0)


def _shape(folder: Path, name: str) -> int:
    path, started = model(folder, **SHAPES[name]), time.monotonic()
    config = load_model(path)
    layouts, command = list(legal(config)), build_command()
    folded_differs = traces_differ = drafts_differ = refused = 0
    for number, layout in enumerate(layouts):
        traces = folder / f"{name}{number}"
        folded_differs += _differs(name, layout, check_layout, path, config, layout, number)
        traces_differ += _differs(
            name, layout, check_graph, path, config, layout, number, command, traces
        )
        shutil.rmtree(traces, ignore_errors=True)
        try:
            drafts_differ += _differs(
                name, layout, _check_drafts, path, config, layout, number, command, traces
            )
        except LlmsimError:
            refused += 1
        shutil.rmtree(traces, ignore_errors=True)
    structures = {structure(config, layout) for layout in layouts}
    seconds = time.monotonic() - started
    print(
        f"| {name} | {len(layouts)} | {len(structures)} | {folded_differs} | {traces_differ} "
        f"| {drafts_differ} | {refused} | {seconds:.0f} |",
        flush=True,
    )
    return folded_differs + traces_differ + drafts_differ


def _check_drafts(*given: Any) -> None:
    check_graph(*given, speculative_config=DRAFTS)


def _differs(name: str, layout: Layout, check: Callable[..., None], *given: object) -> bool:
    try:
        check(*given)
    except AssertionError as error:
        print(f"{name}: {layout}: {str(error).splitlines()[0]}", file=sys.stderr)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
