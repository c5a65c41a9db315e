"""Requests that come while the simulation runs: the same tokens at the same times as `llmsim run`
gives them as a trace.
"""

import heapq
import json
import random
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.api.cluster import Cluster
from llmsim.api.preparation.prepare import compile_cluster
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Status
from llmsim.endpoint.engine.clock import NEVER_PS
from llmsim.endpoint.engine.live import LiveSimulation, live_simulation

ROOT = Path(__file__).resolve().parents[2]


def live_of(cluster: str, rows: int, *more: str) -> LiveSimulation:
    path = ROOT / "cluster_config" / cluster
    options = checked_options(["--cluster-config", str(path), "--dataset", "live", *more])
    compiled = compile_cluster(Cluster.load(options.cluster).parsed(), options)
    return live_simulation(
        compiled,
        rows,
        router=options.router,
        decode_router=options.decode_router,
        seed=options.seed,
        policies=options.policies,
    )


class Clients:
    """They ask, leave, and note what they see; some with one of so many LoRA adapters."""

    def __init__(self, live: LiveSimulation, seed: int, adapters: int = 0) -> None:
        self._live, self._draw = live, random.Random(seed)
        self._adapters = adapters
        self._shared = [self._draw.randrange(1000) for _ in range(1500)]
        self._leaving: list[tuple[int, int]] = []
        self._of_row: dict[int, int] = {}
        self.lines: list[dict[str, Any]] = []
        self.first: dict[int, int] = {}
        self.ended: dict[int, tuple[Status, int]] = {}

    def _look(self, until_ps: int) -> None:
        for seen in self._live.advance(until_ps):
            number = self._of_row[seen.row]
            if seen.ended is not None:
                self.ended[number] = (seen.ended, seen.time_ps)
                continue
            self.first.setdefault(number, seen.time_ps)
            if seen.tokens == self.lines[number]["output_toks"]:
                self.ended[number] = (Status.FINISHED, seen.time_ps)

    def _leave_until(self, time_ns: int) -> None:
        rows = {number: row for row, number in self._of_row.items()}
        while self._leaving and self._leaving[0][0] < time_ns:
            at_ns, number = heapq.heappop(self._leaving)
            self._look(at_ns * 1000 - 1)
            if number not in self.ended:
                self._live.leave(rows[number], at_ns * 1000)
            self._look(at_ns * 1000)

    def ask(self, time_ns: int) -> None:
        """A request whose prompt begins as others do; one client in seven loses patience."""
        self._leave_until(time_ns)
        self._look(time_ns * 1000 - 1)
        tokens = self._draw.randrange(10, 1500)
        shared = self._draw.randrange(tokens)
        prompt = self._shared[:shared]
        prompt += [self._draw.randrange(5000) for _ in range(tokens - shared)]
        answer = [self._draw.randrange(5000) for _ in range(self._draw.randrange(1, 60))]
        adapter = self._draw.randrange(self._adapters + 1) if self._adapters else 0
        row = self._live.ask(time_ns * 1000, prompt, answer, adapter=adapter)
        assert row is not None
        self._of_row[row] = len(self.lines)
        line = {
            "input_toks": len(prompt),
            "output_toks": len(answer),
            "arrival_time_ns": time_ns,
            "input_tok_ids": prompt,
            "output_tok_ids": answer,
        }
        if adapter:
            line["adapter"] = f"adapter {adapter}"
        if len(self.lines) % 7 == 0:
            patience = self._draw.randrange(1, 400_000_000)
            line["cancel_after_ns"] = patience
            heapq.heappush(self._leaving, (time_ns + patience, len(self.lines)))
        self.lines.append(line)

    def wait(self) -> None:
        """Until nothing happens any more."""
        self._leave_until(NEVER_PS)
        self._look(NEVER_PS - 1)


@pytest.mark.parametrize("cluster", ["h100_llama31_8b.json", "h100_llama31_8b_pd_2p1d.json"])
def test_live_requests_get_what_a_trace_of_them_gets(tmp_path: Path, cluster: str) -> None:
    """With fewer rows than requests, so that rows are used again."""
    live = live_of(cluster, rows=40)
    clients, draw = Clients(live, seed=5), random.Random(7)
    time_ns = 0
    for _ in range(160):
        time_ns += draw.randrange(1, 150_000_000)
        clients.ask(time_ns)
    clients.wait()
    compare(clients, tmp_path, cluster)
    assert all(
        group.running == group.waiting == group.kv_blocks_used == 0 for group in live.gauges()
    )


def compare(clients: Clients, folder: Path, cluster: str, **options: Any) -> None:
    """What they have seen is what `llmsim run` says of their trace."""
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in clients.lines))
    requests = llmsim.run(ROOT / "cluster_config" / cluster, trace, **options).requests
    statuses = set()
    for number, (status, at_ps) in clients.ended.items():
        row = requests.iloc[number]
        statuses.add(row["status"])
        assert row["status"] == status.name.lower()
        if status == Status.FINISHED:
            assert (clients.first[number], at_ps) == (row["first_token_ps"], row["finish_ps"])
    assert len(clients.ended) == len(clients.lines)
    assert statuses == {"finished", "cancelled"}


def test_live_requests_with_adapters_take_slots_and_share_no_prefixes(tmp_path: Path) -> None:
    """Five adapters for two slots: who waits for one waits in the run, too."""
    cluster = "h100_llama31_8b.json"
    words = ["--engine-profile", "vllm-0.33", "--max-loras", "2"]
    live = live_of(cluster, 40, *words)
    clients, draw = Clients(live, seed=5, adapters=5), random.Random(7)
    time_ns = 0
    for _ in range(120):
        time_ns += draw.randrange(1, 90_000_000)
        clients.ask(time_ns)
    clients.wait()
    compare(clients, tmp_path, cluster, engine_profile="vllm-0.33", max_loras=2)
    without = live_of(cluster, 40, *words)
    same = Clients(without, seed=5)
    for line in clients.lines:
        same.ask(line["arrival_time_ns"])
    same.wait()
    assert same.first != clients.first


def test_a_request_waits_until_its_adapter_has_a_slot() -> None:
    live = live_of("h100_llama31_8b.json", 4, "--engine-profile", "vllm-0.33", "--max-loras", "1")
    asked = [live.ask(1000 * n, [n] * 20, [2] * 3, adapter=n) for n in (1, 2)]
    rows = [row for row in asked if row is not None]
    assert list(live.advance(5 * 10**9)) == []
    assert live.statuses(rows) == [Status.RUNNING, Status.WAITING]
    seen = list(live.advance(NEVER_PS - 1))
    assert [one.row for one in seen] == [rows[0]] * 3 + [rows[1]] * 3
    assert live.statuses(rows) == [Status.FINISHED] * 2
    with pytest.raises(ValueError, match="row 9 does not exist"):
        live.statuses([9])


def test_a_full_table_of_requests_takes_no_more_until_one_has_ended() -> None:
    live = live_of("h100_llama31_8b.json", rows=2)
    assert live.ask(0, [1] * 20, [2] * 3) is not None
    assert live.ask(0, [1] * 20, [2] * 3) is not None
    assert live.ask(0, [1] * 20, [2] * 3) is None
    assert len(list(live.advance(NEVER_PS - 1))) == 6
    assert live.ask(live.now_ps, [1] * 20, [2] * 3) is not None


def test_a_request_that_can_never_run_is_rejected_at_its_arrival() -> None:
    live = live_of("h100_llama31_8b.json", 4, "--max-model-len", "64")
    live.ask(1000, [1] * 70, [2] * 30)
    (seen,) = live.advance(1000)
    assert (seen.ended, seen.tokens, seen.time_ps) == (Status.REJECTED, 0, 1000)


def test_requests_of_the_past_are_refused() -> None:
    live = live_of("h100_llama31_8b.json", 4)
    live.ask(1000, [1] * 20, [2] * 3)
    list(live.advance(NEVER_PS - 1))
    with pytest.raises(ValueError, match="in the past"):
        live.ask(0, [1] * 20, [2] * 3)
