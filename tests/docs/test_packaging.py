"""What installs and gates: the action, the lock files, the container, and numpy's annotations."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from package import package_sources

from llmsim.columns import Int64, element_type

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = str(ROOT / "cluster_config" / "h100_llama31_8b.json")
SLOWER = str(ROOT / "cluster_config" / "rtxpro6000_llama31_8b.json")
TRACE = str(ROOT / "dataset" / "example_10.jsonl")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def gate(tmp_path: Path, **inputs: str) -> tuple[int, str, str]:
    """Exit code, answer and outputs of the action's script, with this environment's llmsim."""
    outputs, summary = tmp_path / "outputs", tmp_path / "summary"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_STEP_SUMMARY": str(summary),
        "OPTIONS": "--cost-source roofline",
        **inputs,
    }
    done = subprocess.run(
        ["sh", str(ROOT / ".github" / "gate.sh")], env=environment, capture_output=True, text=True
    )
    assert done.stdout in summary.read_text() and not done.stderr
    return done.returncode, done.stdout, outputs.read_text()


@pytest.mark.parametrize(("after", "code"), [(CLUSTER, 0), (SLOWER, 1)])
def test_the_gate_fails_a_slower_deployment(tmp_path: Path, after: str, code: int) -> None:
    rules = "mean_tpot_ms>+20%\nmean_e2el_ms>+20%\n"
    found, answer, outputs = gate(
        tmp_path, GATE="diff", BEFORE=CLUSTER, AFTER=after, DATASET=TRACE, FAIL_IF=rules
    )
    assert found == code and "mean_tpot_ms" in answer
    assert outputs.splitlines() == [f"exit-code={code}", f"report={tmp_path}/llmsim-gate.txt"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"GATE": "diff", "BEFORE": CLUSTER}, "the input after is missing; the gate diff needs it"),
        ({"GATE": "size"}, "the input arguments is missing"),
        ({"GATE": "$(touch x)"}, 'the input gate is "$(touch x)"; give diff, size or validate'),
        ({"GATE": "size", "ARGUMENTS": "--slo $(touch x)"}, "error:"),
    ],
)
def test_a_gate_without_its_inputs_says_so(
    tmp_path: Path, inputs: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, answer, _ = gate(tmp_path, **inputs)
    assert code == 2 and said in answer
    assert not (tmp_path / "x").exists()


def test_the_action_declares_what_its_page_and_its_script_name() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "how-to" / "capacity_gate.md").read_text(encoding="utf-8")
    script = (ROOT / ".github" / "gate.sh").read_text(encoding="utf-8")
    given = action["runs"]["steps"][-1]["env"]
    for name in action["inputs"]:
        assert f"`{name}`" in page
        variable = name.upper().replace("-", "_")
        assert name == "version" or (variable in given and variable in script)
    for workflow in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for step in yaml.safe_load(workflow)["jobs"]["gate"]["steps"]:
            if step.get("uses", "").startswith("OWNER/llmsim"):
                assert set(step["with"]) <= set(action["inputs"])


@pytest.mark.parametrize(
    ("file", "extra"), [("runtime.txt", None), ("tests.txt", "dev"), ("docs.txt", "docs")]
)
def test_lock_files_pin_every_dependency_with_a_hash(file: str, extra: str | None) -> None:
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pin = re.compile(r"[a-z0-9._-]+==[\w.+!]+ --hash=sha256:[0-9a-f]{64}")
    assert all(pin.fullmatch(line) for line in lines) and "://" not in text
    locked = {re.sub(r"[-_.]+", "-", line.partition("==")[0]) for line in lines}
    needed = list(PROJECT["project"]["dependencies"])
    needed += PROJECT["project"]["optional-dependencies"][extra] if extra else []
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;! ]", one)[0].lower()) for one in needed}
    assert names <= locked, "python requirements/lock.py"


def test_the_wheel_holds_one_package() -> None:
    build = PROJECT["tool"]["scikit-build"]
    assert build["wheel"]["packages"] == ["llmsim"]
    assert PROJECT["tool"]["cibuildwheel"]["build"].split() == [
        f"cp3{minor}-*" for minor in (11, 12, 13, 14)
    ]


def test_ci_runs_the_tests_of_a_checkout_and_of_each_wheel() -> None:
    """The commands of the workflow exist, and its versions of Python have the silicon database."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    runs = {
        name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()
    }
    assert runs == {"checkout": [".ci/run"], "wheel": ["make test-wheel PYTHON=python"]}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test-wheel:", makefile, re.MULTILINE)
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    versions = jobs["wheel"]["strategy"]["matrix"]["python"]
    assert [f"cp{one.replace('.', '')}-*" for one in versions] == built[:-1]


def test_elements_of_arrays_before_and_after_numpy_2_5() -> None:
    """numpy 2.5 made NDArray an alias whose only argument is the scalar."""
    assert element_type(Int64) == np.dtype(np.int64)
    assert element_type(tuple[np.int64]) == np.dtype(np.int64)


def test_wheels_hold_every_module_of_the_package() -> None:
    """What leaves folders of the checkout out of the sdist also leaves out those of the package."""
    pathspec = pytest.importorskip("pathspec")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = build["scikit-build"]["sdist"]["exclude"] + build["scikit-build"]["wheel"]["exclude"]
    left_out = pathspec.GitIgnoreSpec.from_lines(patterns)
    files = [path.relative_to(ROOT).as_posix() for path in package_sources().rglob("*.py")]
    missing = [name for name in files if left_out.match_file(name)]
    assert len(files) > 500 and not missing
    assert left_out.match_file("bench/__main__.py")
