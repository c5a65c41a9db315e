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


def asked(case: Case) -> str:
    """What a recorded case asks, as a key."""
    return json.dumps({name: value for name, value in case.items() if name != "found"})


def overlaid(recordings: Iterable[Path]) -> list[Case]:
    """The cases of a recording behind others, of each of which it holds what differs."""
    cases: dict[str, Case] = {}
    for path in recordings:
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            cases[asked(case)] = case
    return list(cases.values())


def record(
    resolver: Callable[[Path], Callable[[Case], Any]],
    cases: Iterable[Case],
    before: Iterable[Case] = (),
) -> None:
    """Prints a line for each case, with what is `found` by the function that `resolver` gives for a
    folder of models; not where the cases recorded `before` have the same.
    """
    known = {asked(case): case["found"] for case in before}
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolver(Path(folder))
        for case in cases:
            found = resolved(case)
            if known.get(asked(case)) != found:
                print(json.dumps(case | {"found": found}))
