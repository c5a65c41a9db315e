"""Whatever an event costs, and whatever code of a user runs: an interrupt ends the run, and its
results are whole.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import ENDLESS, HANGS_S, wait_until_it_simulates, wait_until_it_worked

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Results
from llmsim.simulation.run import native_simulation, simulate

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
SHARED = (
    "synthetic:n=40,rate=200,input=lognormal:150:max=400,output=lognormal:40:max=100,"
    "prefixes=4:tokens=96:share=0.8,seed=4"
)
PRESSED = ("--num-gpu-blocks-override", "60", "--max-model-len", "640", "--cost-source", "roofline")
MODULE = '''
"""Policies that are interrupted in the middle of their n-th call."""


class Counted:
    calls, last = 0, 1 << 60

    def count(self):
        Counted.calls += 1
        if Counted.calls == Counted.last:
            raise KeyboardInterrupt


class Order(Counted):
    preempted_first = False

    def key(self, request):
        self.count()
        return -request.tokens


class Victim(Counted):
    def choose(self, running, needy):
        self.count()
        return len(running) - 1


class Admission(Counted):
    def admit(self, request, group):
        self.count()
        return True


class Router(Counted):
    def route(self, request, groups):
        self.count()
        return 0


class Steps(Counted):
    """One request after the other; every fourth step gives up the one that runs for the next."""

    def __init__(self, limits):
        self.left, self.order, self.turn, self.budget = {}, [], 0, limits.max_num_batched_tokens

    def add(self, request, tokens):
        self.count()
        self.left[request] = [tokens, 0]
        self.order.append(request)

    def build(self, now_ps):
        self.count()
        if not self.order:
            return [], []
        self.turn += 1
        known, computed = self.left[self.order[0]]
        if computed and self.turn % 7 == 0 and len(self.order) > 1:
            self.left[self.order[0]][1] = 0
            self.order.append(self.order.pop(0))
            return [], [self.order[-1]]
        tokens = min(known - computed, 64)
        self.left[self.order[0]][1] += tokens
        return [(self.order[0], tokens)], []

    def complete(self, received):
        self.count()
        for request, count, done in received:
            self.left[request][0] += count
            if done:
                self.order.remove(request)

    def abort(self, request):
        self.count()
        self.order.remove(request)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the policies, in the working directory."""
    (tmp_path / "counted.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    yield importlib.import_module("counted")
    del sys.modules["counted"]


def results_of(*more: str) -> Results:
    prepared = prepare(
        checked_options(["--cluster-config", str(CLUSTER), "--dataset", SHARED, *PRESSED, *more])
    )
    return simulate(prepared.lowered, prepared.workload, prepared.simulation)


@pytest.mark.parametrize(
    "options",
    [
        ("--queue-order", "counted:Order"),
        ("--preemption-victim", "counted:Victim"),
        ("--admission", "counted:Admission"),
        ("--scheduler", "counted:Steps"),
    ],
    ids=lambda options: options[1],
)
def test_an_interrupt_inside_of_any_call_leaves_whole_results(
    module: Any, options: tuple[str, str]
) -> None:
    whole = results_of(*options)
    assert set(whole.invariants.values()) == {"ok"}, whole.invariants
    module.Counted.calls = 0
    results_of(*options)
    calls = module.Counted.calls
    assert calls > 4
    for last in sorted(
        {1, 2, 3, calls // 3, calls // 2, calls - 1} | {7 * k for k in range(1, calls // 7)}
    )[:20]:
        module.Counted.calls, module.Counted.last = 0, last
        cut = results_of(*options)
        assert cut.interrupted, last
        assert set(cut.invariants.values()) == {"ok"}, (last, cut.invariants)
    module.Counted.last = 1 << 60


def test_where_a_call_ends_changes_nothing() -> None:
    """One event per call, because no time is left, gives the columns of one call for all."""
    prepared = prepare(
        checked_options(["--cluster-config", str(CLUSTER), "--dataset", SHARED, *PRESSED])
    )
    parts = (prepared.lowered, prepared.workload, prepared.simulation)
    one, many = native_simulation(*parts), native_simulation(*parts)
    assert one.run(1 << 40)
    calls = 1
    while not many.run(1 << 40, 0):
        calls += 1
    assert calls > 100
    for name, column in one.requests().items():
        assert (column == many.requests()[name]).all(), name
    assert all((column == many.counters()[name]).all() for name, column in one.counters().items())


def test_a_signal_reaches_a_step_that_the_engine_computes() -> None:
    """`--exact`: the call has no limit of time or of events, and ends because the engine asks for
    signals.
    """
    given = ["--cluster-config", str(CLUSTER), *PRESSED[2:], *ENDLESS]
    prepared = prepare(checked_options(given))
    simulation = native_simulation(prepared.lowered, prepared.workload, prepared.simulation)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            simulation.run(1 << 40)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert simulation.counters()["scheduled_tokens"][0] > 0


SLOW = '''
import time
from pathlib import Path


class Slow:
    """Every step takes half a minute of nobody's time."""

    def __init__(self, limits):
        self.known = {}

    def add(self, request, tokens):
        self.known[request] = tokens

    def build(self, now_ps):
        Path("begun").touch()
        time.sleep(30)
        request = min(self.known)
        return [(request, min(self.known[request], 1))], []

    def complete(self, received):
        pass

    def abort(self, request):
        del self.known[request]
'''


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slow", ["scheduler in Python", "expanded"])
def test_slow_events_obey(tmp_path: Path, slow: str, number: signal.Signals) -> None:
    """100,000 events of either kind take longer than anybody waits for a process to end."""
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    options = ENDLESS if slow == "expanded" else (*ENDLESS[:2], "--scheduler", "slow:Slow")
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    if slow == "expanded":
        cluster["nodes"][0]["instances"][0].update({"num_npus": 8, "tp_size": 8})
    (tmp_path / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    command = [
        sys.executable,
        str(ROOT / "main.py"),
        "--cluster-config",
        "cluster.json",
        "--cost-source",
        "roofline",
        *options,
        "--json",
        "--output",
        "o.csv",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    wait_until_it_simulates(process.pid)
    if slow == "expanded":
        wait_until_it_worked(process.pid, 2)
    while slow != "expanded" and process.poll() is None and not (tmp_path / "begun").exists():
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err, err
    summary = json.loads(out)
    assert summary["interrupted"] and set(summary["invariants"].values()) == {"ok"}
    assert (tmp_path / "o.csv").exists()
