"""What clients do before the stand-in engine: turns, giving up, and an API server in between."""

from pathlib import Path

import pytest
from emulation.test_emulation import DATASET, emulated, prepared_run

from llmsim.core import Status
from llmsim.emulation.api_server import ApiServer, Chunk
from llmsim.emulation.load import Clients
from llmsim.emulation.outcome import difference
from llmsim.emulation.requests import engine_requests
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.of_instances import Handover
from llmsim.emulation.timekeeping.timekeeper import Timekeeper
from llmsim.simulation.run import simulate


@pytest.mark.parametrize(
    "options",
    [
        ["--max-concurrency", "2"],
        ["--max-concurrency", "3", "--think-time", "exponential:40"],
        ["--request-timeout", "0.05"],
        ["--max-concurrency", "2", "--request-timeout", "0.03"],
        ["--endpoint", "chat"],
        ["--endpoint", "completions", "--max-concurrency", "2", "--api-server-count", "2"],
    ],
)
def test_clients_have_the_times_of_the_run(options: list[str], tmp_path: Path) -> None:
    prepared = prepared_run(DATASET, *options)
    outcome = emulated(prepared, tmp_path)
    assert difference(outcome, prepared) == ""
    run = simulate(prepared.lowered, prepared.workload, prepared.simulation).requests
    for row, answer in outcome.answers.items():
        assert answer.arrival_ps == run.arrival_ps[row]
        whole = run.status[row] == Status.FINISHED
        assert answer.gave_up or whole
        assert len(answer.token_ps) == run.emitted_tokens[row]
        if answer.token_ps:
            assert answer.token_ps[0] == run.first_token_ps[row]
        if whole:
            assert answer.token_ps[-1] == run.finish_ps[row]
    if "--request-timeout" in options:
        assert any(answer.gave_up for answer in outcome.answers.values())


def test_a_process_works_in_rounds() -> None:
    """What comes in a round waits for the next one, where all tokens of a request are one chunk."""
    config = prepared_run(DATASET, "--endpoint", "chat").lowered.groups[0].native.api_server
    server = ApiServer(config)
    server.tokenize(0, 10, 5)
    server.stream([Chunk(1, 1), Chunk(2, 1)], 6)
    server.stream([Chunk(1, 2)], 7)
    first_ps = 5 + config.request_ps + 10 * config.prompt_token_ps
    assert server.end_ps == first_ps
    assert server.finish(first_ps).prompts == [0]
    assert server.end_ps == first_ps + 2 * config.chunk_ps
    assert server.finish(server.end_ps).answers == [Chunk(1, 1), Chunk(2, 1), Chunk(1, 2)]
    assert server.end_ps is None


class StandingClock:
    """The clients are never woken."""

    def __init__(self) -> None:
        self.time = Timekeeper()
        self.has_worked = 0

    def clients_work(self) -> None:
        self.has_worked += 1


@pytest.mark.parametrize(("told_ps", "due_ps"), [(3, 7), (9, 9)])
def test_a_prompt_is_computed_when_there_is_memory_for_its_kv(told_ps: int, due_ps: int) -> None:
    """The server that writes KV gets it no sooner than its API server has read it, at 7 ps."""
    prepared = prepared_run(DATASET)
    workload, keeper = prepared.workload, StandingClock()
    arrival_ps, rows = int(workload.arrival_ps[0]), len(workload)
    stages = [Stage([Door(port, [7 - arrival_ps] * rows)]) for port in (1, 2)]
    requests = engine_requests(workload, stops=False)
    clients = Clients(
        keeper,
        workload,
        requests,
        "m",
        stages,  # type: ignore[arg-type]
        handover=Handover.WRITTEN,
    )
    clients._take_lines()
    assert {one.stage for one in clients._due} == {1}
    keeper.time.now_ps = told_ps
    clients.has_memory(0)
    (due,) = [one for one in clients._due if one.stage == 0]
    assert (due.row, due.at_ps, keeper.has_worked) == (0, due_ps, 1)
