"""`--executor ray`: the same results as local processes, for any number of workers."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmsim.cli import main
from tests.search.test_model_spaces import written

HALVING = {"requests": [20, 40]}


def test_ray_gives_the_results_of_local_processes(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='the extra "ray" is not installed')
    path = written(tmp_path, tp=[2], halving=HALVING)
    results = []
    for executor, jobs in (("local", 1), ("ray", 4), ("ray", 2), ("ray", 1)):
        out = tmp_path / f"{executor}{jobs}"
        words = ["--executor", executor, "-j", str(jobs)]
        assert main(["search", str(path), "-o", str(out), *words]) == 0
        results.append((out / "result.json").read_bytes())
    assert results[1:] == results[:1] * 3
    assert len(json.loads(results[0])["trials"]) > 3


def test_a_dead_actor_is_a_failed_run(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='the extra "ray" is not installed')
    from llmsim.lowering import LoweringOptions
    from llmsim.sizing.workers.ray_worker import RayWorker, connect
    from llmsim.sizing.workers.workers import WorkerDied, Workers

    connect()
    with Workers(1, LoweringOptions(), apart=True, start=RayWorker) as workers:
        assert workers.ask("tests.search.test_ray:double", 21) == 42
        with pytest.raises(ZeroDivisionError):
            workers.ask("tests.search.test_ray:double", 0)
        with pytest.raises(WorkerDied):
            workers.ask("tests.search.test_ray:double", None)
        assert workers.ask("tests.search.test_ray:double", 1) == 2  # another actor


def double(_: object, task: int | None) -> int:
    """Twice a number; ends the process for None, and fails for 0."""
    if task is None:
        import os

        os._exit(3)
    return 2 * task if 1 / task else 0


@pytest.fixture(scope="module", autouse=True)
def without_ray_afterwards() -> Iterator[None]:
    """Ends the Ray that the tests started, which is for this module alone."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()


@pytest.mark.parametrize(
    ("executor", "said"),
    [("rey", '--executor is "rey" (did you mean "ray"?); give local or ray'), ("ray", "needs ray")],
)
def test_an_executor_that_is_none_is_refused(
    executor: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["search", str(written(tmp_path)), "-o", str(tmp_path / "out"), "--executor", executor]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
