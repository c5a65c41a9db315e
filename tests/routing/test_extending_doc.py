"""Documented routers of one's own run as printed; the tables list the native routers that exist."""

import re
import sys
from pathlib import Path

import pytest

from llmsim import _native
from llmsim.cli import run_main
from llmsim.routing import base

ROOT = Path(__file__).resolve().parents[2]
DOC = "".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("how-to/extending/routers.md", "reference/routers.md")
)
EXAMPLES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", DOC, re.S))


@pytest.mark.parametrize(
    ("policy", "twin"),
    [("my_routers:ShortPromptsFirst:limit=100", None), ("least:LeastOutstanding", "LOR")],
)
def test_the_examples_run(
    policy: str, twin: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = policy.split(":")[0]
    (tmp_path / f"{module}.py").write_text(EXAMPLES[module], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert f"{policy}" in DOC or twin
    for name, chosen in (("a", policy), ("b", twin)):
        if chosen is not None:
            arguments = [
                "--cluster-config",
                str(ROOT / "cluster_config" / "h100_multi_instance.json"),
            ]
            arguments += [
                "--dataset",
                str(ROOT / "dataset" / "chat_h100_300.jsonl"),
                "--cost-source",
                "roofline",
            ]
            arguments += [
                "--request-routing-policy",
                chosen,
                "--output",
                str(tmp_path / f"{name}.csv"),
                "--json",
            ]
            assert run_main(arguments) == 0
    sys.modules.pop(module, None)
    if twin is not None:
        assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_every_example_is_tested() -> None:
    pages = (ROOT / "docs" / "how-to" / "extending").glob("*.md")
    names = {
        name for page in pages for name in re.findall(r"```python\n# (\w+)\.py\n", page.read_text())
    }
    here = {"my_routers", "least"}
    policies = {
        "shortest",
        "youngest",
        "lru",
        "limit",
        "hot",
        "in_order",
        "ageing",
        "fair",
        "h2q_br",
    }
    costs = {"my_costs"}  # tests/costs/test_external_documents.py
    assert names == here | policies | costs


def test_the_tables_are_complete() -> None:
    for kind in _native.router_kinds():
        row = next(line for line in DOC.splitlines() if line.startswith(f"| `{kind.name}` |"))
        options = re.findall(r"`(\w+)` \((\S+?)\)", row.split("|")[3])
        assert options == [(option.name, f"{option.default:g}") for option in kind.options], (
            kind.name
        )
    for view in (base.RequestView, base.GroupView):
        for name in (name for name, value in vars(view).items() if isinstance(value, property)):
            assert f"`{name}`" in DOC, name
