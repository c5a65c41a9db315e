"""Plug-ins of every kind: errors name file and line, prints leave stdout alone, and each group has
an object.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[3]
LOAD = "synthetic:n=40,rate=40,input=lognormal:150:max=600,output=lognormal:120:max=500,seed=4"
CLASSES = {
    "--request-routing-policy": (
        "router",
        "def route(self, request, groups):",
        "return groups[0].index",
        "",
    ),
    "--queue-order": ("queue order", "def key(self, request):", "return 0", ""),
    "--preemption-victim": (
        "preemption victim",
        "def choose(self, running, needy):",
        "return 0",
        "",
    ),
    "--cache-eviction": (
        "cache eviction",
        "def evict(self, count):",
        "return [self.free.pop() for _ in range(count)]",
        "    def __init__(self):\n        print('made')\n        self.free = []\n"
        "    def freed(self, blocks): self.free += blocks\n"
        "    def reused(self, blocks): self.free[:] = [one for one in self.free if one not in "
        "blocks]\n",
    ),
    "--admission": ("admission", "def admit(self, request, group):", "return True", ""),
    "--scheduler": (
        "scheduler",
        "def build(self, now_ps):",
        "return [], []",
        "    def __init__(self, limits): print('made')\n    def add(self, request, tokens): pass\n"
        "    def complete(self, received): pass\n    def abort(self, request): pass\n",
    ),
    "--cost-source": (
        "plug-in",
        "def operator(self, op, last):",
        "return None",
        (
            "    def __init__(self, request): print('made')\n    def attention(self, op): return "
            "None\n"
        ),
    ),
    "--expert-routing-policy": (
        "--expert-routing-policy",
        "def popularity(self, layers, experts, seed):",
        "return [[1.0] * experts] * layers",
        "",
    ),
}
"""Option -> how its messages begin, its main method, an answer, and what else its class needs."""
WRONG = {
    "--request-routing-policy": "99",
    "--queue-order": "0.5",
    "--preemption-victim": "99",
    "--cache-eviction": "[]",
    "--admission": "'perhaps'",
    "--scheduler": "5",
    "--cost-source": "5",
    "--expert-routing-policy": "[[1.0]]",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("LLMSIM_DEBUG", raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, option: str, body: str) -> str:
    """A module whose main method has this body; its line is the last one. The name of the class."""
    _, method, _, rest = CLASSES[option]
    made = "" if "__init__" in rest else "    def __init__(self): print('made')\n"
    text = f"print('imported')\nclass Mine:\n{made}{rest}    {method}\n        {body}\n"
    name = f"mine_{option.strip('-').replace('-', '_')}"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return f"{name}:Mine"


def run(folder: Path, option: str, name: str) -> int:
    cluster = (
        "h100_qwen3_30b_a3b.json" if option == "--expert-routing-policy" else "h100_llama31_8b.json"
    )
    document = json.loads((ROOT / "cluster_config" / cluster).read_text(encoding="utf-8"))
    if option != "--expert-routing-policy":
        instance = document["nodes"][0]["instances"][0]
        document["nodes"][0]["instances"] = [instance, instance]
        document["nodes"][0].pop("num_instances", None)
    (folder / "c.json").write_text(json.dumps(document), encoding="utf-8")
    words = [
        "--cluster-config=c.json",
        f"--dataset={LOAD}",
        "--cost-source=roofline",
        "--max-model-len=2048",
        "--json",
    ]
    words += [] if option == "--expert-routing-policy" else ["--num-gpu-blocks-override=100"]
    return run_main([*words, f"{option}={name}"])


def last_line(folder: Path, name: str) -> int:
    return (folder / f"{name.partition(':')[0]}.py").read_text(encoding="utf-8").count("\n")


@pytest.mark.parametrize("option", CLASSES)
def test_an_exception_names_file_and_line(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(folder, option, "raise KeyError('colour')")
    assert run(folder, option, name) == 2
    captured = capsys.readouterr()
    (sentence,) = (line for line in captured.err.splitlines() if line not in ("imported", "made"))
    file = f"{name.partition(':')[0]}.py"
    assert sentence.endswith(f"failed: KeyError: 'colour' ({file}:{last_line(folder, name)})") or (
        f"KeyError: 'colour' ({file}:{last_line(folder, name)})" in sentence
    )
    assert CLASSES[option][0] in sentence and captured.out == ""


@pytest.mark.parametrize("option", CLASSES)
def test_an_exception_has_its_traceback_where_it_is_asked_for(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSIM_DEBUG", "1")
    assert run(folder, option, write(folder, option, "raise KeyError('colour')")) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error and "raise KeyError('colour')" in error
    assert error.splitlines()[-1].startswith("llmsim: error: ")


@pytest.mark.parametrize("option", CLASSES)
def test_a_wrong_answer_names_file_and_line(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(folder, option, f"return {WRONG[option]}")
    assert run(folder, option, name) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert f"({name.partition(':')[0]}.py:{last_line(folder, name) - 1})" in sentence
    assert CLASSES[option][0] in sentence


@pytest.mark.parametrize("option", [option for option in CLASSES if option != "--scheduler"])
def test_what_it_prints_goes_to_stderr_and_each_group_has_an_object(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"print('asked'); {CLASSES[option][2]}"
    assert run(folder, option, write(folder, option, body)) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    json.loads(captured.out)
    said = captured.err.splitlines()
    per_group = option in ("--queue-order", "--preemption-victim", "--cache-eviction")
    assert said.count("imported") == 1 and "asked" in said
    assert said.count("made") == (2 if per_group else 1)


def test_a_scheduler_has_an_object_for_each_group_and_none_without_its_limits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--scheduler", write(folder, "--scheduler", "return [], []")) == 2
    assert capsys.readouterr().err.splitlines().count("made") == 2


@pytest.mark.parametrize("option", CLASSES)
@pytest.mark.parametrize("thing", ["subprocess:getoutput", "os:environ", "decimal:Decimal"])
def test_nothing_is_called_of_what_lacks_the_protocol(
    option: str,
    thing: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def called(*_: object, **__: object) -> None:
        raise AssertionError("it was called")

    monkeypatch.setattr(subprocess, "getoutput", called)
    assert run(folder, option, thing) == 2
    sentence = capsys.readouterr().err
    assert "is not a class but a" in sentence or "has no method" in sentence
    assert sentence.count("\n") == 1


@pytest.mark.parametrize("option", CLASSES)
def test_the_end_of_the_process_by_a_plugin_names_its_line(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(folder, option, "raise SystemExit(0)")
    assert run(folder, option, name) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "a policy or plug-in ended the program (sys.exit(0)) at " in sentence
    assert f"{name.partition(':')[0]}.py:{last_line(folder, name)}; let it return" in sentence


def test_modules_that_cannot_be_imported_name_their_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "no_syntax.py").write_text("x = 1\nclass Mine\n", encoding="utf-8")
    (folder / "no_module.py").write_text("x = 1\nx = {}['a']\n", encoding="utf-8")
    for option in CLASSES:
        for module in ("no_syntax", "no_module"):
            assert run(folder, option, f"{module}:Mine") == 2
            sentence = capsys.readouterr().err
            assert f"{module}.py" in sentence and (":2)" in sentence or "line 2" in sentence), (
                sentence
            )
            assert sentence.count("\n") == 1
