"""Runs every legal layout of up to 16 devices, of several models, folded and expanded, and counts
those that differ.

usage: python evaluation/layouts.py [--shape NAME]

A few minutes. The tests run one layout of each structure (tests/lowering/test_every_layout.py);
what makes two layouts alike, the models, and how keys of a cluster file lead to a layout are in
tests/lowering/legal.py.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from llmsim.cli.arguments import OneSentenceParser
from llmsim.model import load_model
from tests.lowering.clusters import model
from tests.lowering.legal import SHAPES, check_layout, legal, structure


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, help="this model alone")
    chosen = parser.parse_args().shape
    print(
        "| model | layouts | structures | folded is not expanded | seconds |\n| --- | --- | --- "
        "| --- | --- |"
    )
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in [chosen] if chosen else SHAPES:
            different += _shape(Path(folder), name)
    return int(different > 0)


def _shape(folder: Path, name: str) -> int:
    path, started = model(folder, **SHAPES[name]), time.monotonic()
    config = load_model(path)
    layouts, different = list(legal(config)), 0
    for number, layout in enumerate(layouts):
        try:
            check_layout(path, config, layout, number)
        except AssertionError as error:
            different += 1
            print(f"{name}: {layout}: {str(error).splitlines()[0]}", file=sys.stderr)
    structures = {structure(config, layout) for layout in layouts}
    seconds = time.monotonic() - started
    print(
        f"| {name} | {len(layouts)} | {len(structures)} | {different} | {seconds:.0f} |", flush=True
    )
    return different


if __name__ == "__main__":
    sys.exit(main())
