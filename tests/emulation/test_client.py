"""Unmodified load generators under the clock, before the stand-in engine or vLLM's own server."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emulation.stand_in_engine import StandIn
from emulation.test_emulation import CLUSTER, prepared_run

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.emulation.client import client_command, client_environment, client_process, filled
from llmsim.emulation.devices import Begun, Devices
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.vllm import Vllm, VllmApi
from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.processes import cpu_seconds_of, descendants
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.http_messages import prompt_tokens
from llmsim.emulation.servers.of_instances import engine_stages
from llmsim.emulation.servers.relay import Relay
from llmsim.emulation.timekeeping.client_threads import SEVERAL, WAKE_OTHERS
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.emulation.words import EndlessAnswers
from llmsim.scheduling.conformance.engine_python import linked_environment

CLIENT = Path(__file__).with_name("stand_in_client.py")
ONE = "synthetic:n=1,rate=1,input=fixed:1,output=fixed:1"


async def emulated(
    kind: str, folder: Path, breaks_at: int = 0, sizes: tuple[int, ...] = (1,)
) -> tuple[dict[str, Any], Relay, Keeper]:
    """The stand-in client of that kind before stand-in engines, of which each stage has so many."""
    folder.mkdir()
    group = engine_stages(prepared_run(ONE))[0].servers[0].first
    endless = [EndlessAnswers() for _ in range(sum(sizes))]
    keeper = Keeper(folder, [Devices(group, one) for one in endless])

    def joins(row: int, tokens: int) -> None:
        for one in endless:
            one.joins(row, tokens)

    async with keeper.listening():
        path = str(keeper.socket_path)
        engines = [
            await asyncio.to_thread(StandIn, path, breaks_at, number)
            for number in range(len(endless))
        ]
        doors = iter(Door(one.port, [], number) for number, one in enumerate(engines))
        stages = [Stage([next(doors) for _ in range(size)]) for size in sizes]
        keeper.relay = relay = Relay(
            keeper, lambda group, tokens: 1_000_000 * tokens, joins, stages, VllmApi()
        )
        listens = await relay.listen()
        sends = asyncio.create_task(relay.run())
        out = folder / "out.json"
        command = [sys.executable, str(CLIENT), kind, str(relay.port), str(out)]
        environment = client_environment(
            linked_environment(folder), keeper, relay.port, folder / "client"
        )
        with client_process(command, environment, keeps_stdout=False) as process:
            for _ in range(600):
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.1)
            else:
                pytest.fail(f"nothing moves: {keeper.blockers()}")
        assert process.returncode == 0
        sends.cancel()
        keeper.close()
        listens.close()
        for engine in engines:
            await asyncio.to_thread(engine.close)
    return json.loads(out.read_text(encoding="utf-8")), relay, keeper


@pytest.mark.parametrize(
    ("kind", "requests", "pause_s"), [("asyncio", 8, 3600.0), ("sockets", 4, 6.0)]
)
def test_a_client_sees_virtual_time(
    kind: str, requests: int, pause_s: float, tmp_path: Path
) -> None:
    """What it measures is what the engine has given, to the picosecond of a float; it sleeps for
    nothing; two emulations are the same.
    """
    one, relay, keeper = asyncio.run(emulated(kind, tmp_path / "one"))
    assert not relay.reasons
    assert not keeper.reasons
    assert sorted(relay.answers) == list(range(requests))
    for times, answer in zip(one["times"], relay.answers.values(), strict=True):
        seen = [(token - answer.arrival_ps) / 1e12 for token in answer.token_ps]
        assert times == pytest.approx(seen, abs=1e-9)
        assert times[0] > 0
    assert one["took_s"] > pause_s > one["real_s"]
    other, again, _ = asyncio.run(emulated(kind, tmp_path / "other"))
    assert again.answers == relay.answers
    assert other["times"] == one["times"]


@pytest.mark.parametrize("sizes", [(2,), (1, 1), (2, 1)])
def test_a_client_before_several_servers(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Requests take turns at the servers of a stage, and pass one of each."""
    one, relay, _ = asyncio.run(emulated("asyncio", tmp_path / "one", sizes=sizes))
    assert not relay.reasons
    lasts = sizes[0] if len(sizes) > 1 else 0
    passed = [[row % sizes[0], lasts][: len(sizes)] for row in range(8)]
    assert list(relay.passed.values()) == passed
    for times, answer in zip(one["times"], relay.answers.values(), strict=True):
        seen = [(token - answer.arrival_ps) / 1e12 for token in answer.token_ps]
        assert times == pytest.approx(seen, abs=1e-9)
    other, _, _ = asyncio.run(emulated("asyncio", tmp_path / "other", sizes=sizes))
    assert other["times"] == one["times"]


def test_a_thread_that_waits_by_itself_is_a_reason(tmp_path: Path) -> None:
    found, _, keeper = asyncio.run(emulated("threads", tmp_path / "one"))
    assert found["took_s"] > 3660
    assert WAKE_OTHERS in keeper.reasons


def test_a_main_thread_may_wait_for_another_one(tmp_path: Path) -> None:
    found, relay, keeper = asyncio.run(emulated("joins", tmp_path / "one"))
    assert len(relay.answers) == 4
    assert found["took_s"] > 6 > found["real_s"]
    assert any("the client asks the server in its thread" in why for why in keeper.reasons)


def test_a_client_that_sends_when_answers_end_repeats(tmp_path: Path) -> None:
    """Work in pools of threads and answers that end together come in one order."""
    found = []
    for number in range(5):
        times, relay, keeper = asyncio.run(emulated("at once", tmp_path / str(number)))
        assert not relay.reasons + keeper.reasons
        found.append((times["times"], relay.answers))
    assert found[1:] == found[:1] * 4


def test_an_answer_that_breaks_off_ends_for_its_client(tmp_path: Path) -> None:
    """The client gets what was there, and the others go on."""
    found, relay, _ = asyncio.run(emulated("asyncio", tmp_path / "one", breaks_at=5))
    assert any("ConnectionResetError" in reason for reason in relay.reasons)
    wanted = [2 + number % 4 for number in range(8)]
    got = [len(times) for times in found["times"]]
    assert sorted(a >= b for a, b in zip(got, wanted, strict=True)) == [False] + [True] * 7


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_client_of_several_processes_sees_virtual_time(kind: str, tmp_path: Path) -> None:
    """Each of them sleeps in it, and its parent waits for it without a word."""
    found, relay, keeper = asyncio.run(emulated(kind, tmp_path / "one"))
    assert keeper.failure is None
    assert keeper.time.degraded == ""
    assert SEVERAL in keeper.reasons
    assert found["took_s"] > 33
    seen = [[token - one.arrival_ps for token in one.token_ps] for one in relay.answers.values()]
    measured = [[round(time * 1e12) for time in one] for one in found["times"]]
    assert len(measured) == 4
    for one in measured:
        assert any(one == pytest.approx(other, abs=1000) for other in seen)


class NoSteps:
    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        pass

    def step(self, items: list[Any], now_ps: int) -> Begun:
        raise AssertionError("nobody asks")

    def empty_step(self) -> None:
        raise AssertionError("nobody asks")


ACTOR = """
import sys
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.vllm import Vllm, VllmApi
from llmsim.emulation.in_engine.channel import Channel
channel = Channel(sys.argv[1], int(sys.argv[2]))
channel.wait(10**12 * 10**6 if sys.argv[2] == "0" else 10**12 // 5)
print("awake", flush=True)
channel.wait(10**12 * 2 // 5)
channel.close()
"""


async def killed(folder: Path) -> tuple[Keeper, bytes, float]:
    """One of two actors is killed while it has requests under way."""
    keeper = Keeper(folder, [NoSteps(), NoSteps()])
    async with keeper.listening():
        keeper.sent(0)  # never arrives
        words = [sys.executable, "-c", ACTOR, str(keeper.socket_path)]
        first, second = (
            subprocess.Popen([*words, number], stdout=subprocess.PIPE) for number in ("0", "1")
        )
        while len(keeper.time.actors) < 3 or not keeper.messages >= 4:
            await asyncio.sleep(0.02)
        waits = asyncio.create_task(keeper.clients_wait(None))
        await asyncio.sleep(0.1)
        assert keeper.now_ps == 0  # the request that is under way holds the clock
        os.kill(first.pid, signal.SIGKILL)
        began = asyncio.get_running_loop().time()
        said, _ = await asyncio.wait_for(asyncio.to_thread(second.communicate), 30)
        took_s = asyncio.get_running_loop().time() - began
        first.communicate()
        waits.cancel()
    return keeper, said, took_s


def test_where_an_actor_is_killed_the_others_go_on_at_wall_speed(tmp_path: Path) -> None:
    keeper, said, took_s = asyncio.run(killed(tmp_path))
    assert said == b"awake\n"
    assert "engine core 0 died at 0.000000 virtual s" in keeper.time.degraded
    assert took_s >= 0.4
    assert keeper.now_ps >= 4 * 10**11


async def left_open(folder: Path) -> tuple[Keeper, Channel]:
    """An engine core is still connected when the emulation is over."""
    keeper = Keeper(folder, [NoSteps()])
    async with keeper.listening():
        channel = await asyncio.to_thread(Channel, str(keeper.socket_path), 0)
        while len(keeper.time.actors) < 2:
            await asyncio.sleep(0.01)
    return keeper, channel


def test_who_leaves_when_the_emulation_is_over_has_not_died(tmp_path: Path) -> None:
    keeper, channel = asyncio.run(left_open(tmp_path))
    channel.close()
    assert keeper.time.degraded == ""


@pytest.mark.parametrize("its_own_session", [False, True])
def test_processes_of_a_client_end_with_it(its_own_session: bool) -> None:
    code = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, "
        f"start_new_session={its_own_session}).pid)"
    )
    command = [sys.executable, "-c", f"{code}; import time; time.sleep(60)"]
    with client_process(command, dict(os.environ), keeps_stdout=False) as process:
        for _ in range(500):
            children = descendants(process.pid)
            if children:
                break
            time.sleep(0.02)
    assert len(children) == 1
    for _ in range(500):
        if not cpu_seconds_of(children):
            break
        time.sleep(0.02)
    assert not cpu_seconds_of(children)


def test_words_of_a_client() -> None:
    assert filled(["--url", "{base_url}/v1"], {"base_url": "x"}) == ["--url", "x/v1"]
    assert client_command(["vllm", "bench"], Path(sys.executable), Vllm())[-1] == "bench"
    with pytest.raises(InputError, match="is no command that runs"):
        client_command(["no-such-program"], Path(sys.executable), Sglang())
    assert prompt_tokens({"prompt": "t1 t2 t3"}) == 3
    assert prompt_tokens({"prompt": [[5, 6]]}) == 2
    assert prompt_tokens({"messages": [{"content": "a b"}, {"content": "c"}]}) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "-- is followed by no client"),
        (["--dataset", ONE, "--", "true"], "--dataset: the client after -- sends its own requests"),
    ],
)
def test_bad_words_are_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", "vllm", "--cluster-config", str(CLUSTER), *words]) == 2
    assert said in capsys.readouterr().err


BENCH = (
    "vllm bench serve --backend openai --base-url {base_url} --model {model} "
    "--tokenizer {tokenizer} --dataset-name random --random-input-len 64 --random-output-len 8 "
    "--num-prompts 12 --request-rate 10 --ignore-eos --disable-tqdm --seed 1"
)


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
def test_two_short_runs_of_vllms_own_client_are_the_same(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"]]
        words += ["--cluster-config", str(CLUSTER), "--run-dir", str(tmp_path / name)]
        assert main([*words, "--", *shlex.split(BENCH)]) == 0
        manifest = json.loads((tmp_path / name / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["deterministic"] is True
        found.append((tmp_path / name / "client.json").read_bytes())
    assert found[0] == found[1]
    assert json.loads(found[0])["completed"] >= 12
