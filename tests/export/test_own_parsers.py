"""Exports are read by the parsers of the tools themselves, where those are installed.

`python evaluation/readers.py` installs them below build/readers, each in an environment of its own.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "readers"


@pytest.fixture(scope="module")
def readers() -> ModuleType:
    place = ROOT / "evaluation" / "readers.py"
    spec = importlib.util.spec_from_file_location("evaluation_readers", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["vllm", "aiperf", "guidellm", "prometheus"])
def test_a_tool_reads_what_the_run_has(name: str, readers: ModuleType, tmp_path: Path) -> None:
    environment = ENVIRONMENTS / name
    if not (environment / "made").is_file():
        pytest.skip(f"{name} is not installed; `python evaluation/readers.py --tools {name}` does")
    summary = readers.exported(tmp_path, [name])
    tool = readers.TOOLS[name]
    found = readers.read(tool, environment, tmp_path / tool.file)
    assert readers.problems(found, summary) == []
    assert found["completed"] == 200
