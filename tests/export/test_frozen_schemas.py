"""The names and types of every export are those that the tools' own parsers took.

`evaluation/readers.py` asks the parsers, where they can be installed. This test keeps what it
found: a name that is lost or changes its type fails here. After a change that the parsers accept,
`python -m tests.export.test_frozen_schemas` writes the file anew.
"""

import json
import sys
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("frozen_schemas.json")
CLUSTER = ROOT / "cluster_config" / "h100_multi_instance.json"
LOAD = "synthetic:n=20,rate=30,input=lognormal:300,output=lognormal:40,seed=3"
FILES = {
    "vllm-bench": {"vllm": "bench.json"},
    "aiperf": {
        "aiperf": "aiperf/profile_export_aiperf.json",
        "aiperf_records": "aiperf/profile_export.jsonl",
    },
    "guidellm": {"guidellm": "guidellm.json"},
    "inference-perf": {
        "perf": "perf/summary_lifecycle_metrics.json",
        "perf_requests": "perf/per_request_lifecycle_metrics.json",
    },
    "mlperf": {"mlperf": "mlperf.json"},
    "openmetrics": {"openmetrics": "openmetrics.txt"},
    "llmservingsim": {"llmservingsim": "llmservingsim.csv"},
}
TARGETS = {
    "vllm-bench": "bench.json",
    "aiperf": "aiperf",
    "guidellm": "guidellm.json",
    "inference-perf": "perf",
    "mlperf": "mlperf.json",
    "openmetrics": "openmetrics.txt",
    "llmservingsim": "llmservingsim.csv",
}


def shape_of(value: Any) -> Any:
    """A JSON value with types in place of plain values; a list has the shape of all its items."""
    if isinstance(value, dict):
        return {name: shape_of(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [reduce(merged, map(shape_of, value))] if value else []
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if number else type(value).__name__


def merged(one: Any, other: Any) -> Any:
    """The shape of two items of a list."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted({*one, *other})
        return {
            name: merged(one.get(name, other.get(name)), other.get(name, one.get(name)))
            for name in names
        }
    if isinstance(one, list) and isinstance(other, list):
        items = [*one, *other]
        return [reduce(merged, items)] if items else []
    return one if one == other else " or ".join(sorted({*str(one).split(" or "), str(other)}))


def schema_of(path: Path) -> Any:
    """Names and types of a file: JSON, JSON lines, the types of OpenMetrics, the header of CSV."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return sorted(line for line in text.splitlines() if line.startswith("# TYPE"))
    if path.suffix == ".csv":
        return text.splitlines()[0].split(",")
    lines = path.suffix == ".jsonl"
    return shape_of([json.loads(one) for one in text.splitlines()] if lines else json.loads(text))


def schemas(folder: Path) -> dict[str, Any]:
    """The schema of every export of a small run."""
    words = ["run", "--cluster-config", str(CLUSTER), "--dataset", LOAD, "--quiet"]
    assert main([*words, "--cost-source", "roofline", "--run-dir", str(folder / "run")]) == 0
    found = {}
    for name, files in FILES.items():
        target = str(folder / TARGETS[name])
        assert main(["export", str(folder / "run"), "--format", name, "-o", target]) == 0
        found |= {key: schema_of(folder / file) for key, file in files.items()}
    return found


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return schemas(tmp_path_factory.mktemp("schemas"))


@pytest.mark.parametrize("name", [key for files in FILES.values() for key in files])
def test_an_export_has_the_frozen_names_and_types(name: str, now: dict[str, Any]) -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert now[name] == frozen[name]


def test_every_format_is_frozen() -> None:
    from llmsim.export.benchmark_formats.formats import FORMATS

    assert set(FORMATS) == set(FILES) == set(TARGETS)


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        rows = [f'"{key}": {json.dumps(one)}' for key, one in schemas(Path(temporary)).items()]
    FROZEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    sys.exit(0)
