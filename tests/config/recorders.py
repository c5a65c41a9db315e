"""What the recorders of servers' defaults share; it runs in the interpreters of engines, too."""

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def written(folder: Path, config: dict[str, Any]) -> str:
    """The path of a new folder with a model's config.json."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def record(resolver: Callable[[Path], Callable[[Case], Any]], cases: Iterable[Case]) -> None:
    """Prints a line for each case, with what is `found` by the function that `resolver` gives for a
    folder of models.
    """
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolver(Path(folder))
        for case in cases:
            print(json.dumps(case | {"found": resolved(case)}))
