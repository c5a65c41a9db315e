"""SGLang's server as an emulation starts it, talks to it and puts it under the clock; SGLang itself
where there is one.
"""

import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from emulation.same_bytes import check_same_bytes
from emulation.test_emulation import CLUSTER, DATASET, EAGLE, NGRAM, emulated, prepared_run

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError, NotYetError
from llmsim.emulation.devices import answered
from llmsim.emulation.engines.engine import RefusedError
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.sglang_api import Generate, SglangApi
from llmsim.emulation.engines.sglang_flags import server_flags
from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.in_engine.sglang.scheduler import Inbox, Messages
from llmsim.emulation.outcome import difference
from llmsim.emulation.requests import engine_requests
from llmsim.emulation.servers.of_instances import engine_stages
from llmsim.emulation.words import EndlessAnswers
from llmsim.scheduling.conformance.model_runner import ModelRunner

LONG_ANSWERS = ["--dataset", "synthetic:n=9,rate=20,input=uniform:20-90,output=fixed:600,seed=3"]
"""They take longer than SGLang waits behind a client that has left."""
RANKS = "single_node_moe_dp_ep_instance.json"
SMALL_POOL = ["--block-size", "16", "--num-gpu-blocks-override", "200"]


def of_sglang(*options: str, cluster: str = CLUSTER.name) -> Prepared:
    words = ["--cluster-config", str(CLUSTER.parent / cluster), "--dataset", DATASET]
    return prepare(checked_options([*Sglang().options(), *words, *options]))


def test_clients_speak_sglangs_way(tmp_path: Path) -> None:
    """The stand-in takes vLLM's steps, whoever asks."""
    prepared = prepared_run(DATASET)
    outcome = emulated(prepared, tmp_path, Generate(4096))
    assert difference(outcome, prepared) == ""
    assert not any(one.refused for one in outcome.answers.values())


def test_an_error_in_place_of_an_answer_is_kept(tmp_path: Path) -> None:
    prepared = prepared_run("synthetic:n=2,rate=1,input=fixed:2000,output=fixed:3,seed=1")
    outcome = emulated(prepared, tmp_path, Generate(4096))
    assert [one.refused for one in outcome.answers.values()] == ["the prompt is too long"] * 2


def test_an_answer_ends_by_its_length_or_by_a_token() -> None:
    workload = prepared_run(DATASET).workload
    (by_length, *_), (by_token, *_) = (
        engine_requests(workload, stops=stops) for stops in (False, True)
    )
    asked = Generate(4096).body(by_length, "m", prompt_alone=False)
    assert asked["sampling_params"]["max_new_tokens"] == by_length.output_tokens
    assert len(asked["input_ids"]) == by_length.input_tokens
    sampling = Generate(4096).body(by_token, "m", prompt_alone=False)["sampling_params"]
    assert sampling["stop_token_ids"] == [by_token.output(by_token.output_tokens - 1)]
    assert Generate(4096).tokens(b'{"output_ids":[4,5],"meta_info":{"id":"000000001"}}') == 2
    with pytest.raises(RefusedError, match="no"):
        Generate(4096).tokens(b'{"error":{"message":"no"}}')


def test_flags_say_what_the_options_say() -> None:
    options = ["--block-size", "16", "--num-gpu-blocks-override", "101", "--no-sglang-overlap"]
    options += ["--sglang-mixed-chunk", "--sglang-schedule-policy", "lpm", "--max-num-seqs", "7"]
    words = server_flags(of_sglang(*options).lowered.groups[0], "model")
    values = dict(itertools.pairwise(words))
    assert values["--page-size"] == "16"
    assert values["--max-total-tokens"] == "1600"
    assert values["--schedule-policy"] == "lpm"
    assert values["--max-running-requests"] == "7"
    assert {"--disable-overlap-schedule", "--enable-mixed-chunk"} <= set(words)
    assert "--disable-radix-cache" not in words


def test_flags_say_what_drafts_there_are() -> None:
    options = ["--speculative-config", EAGLE, "--sglang-eagle-topk", "2"]
    words = server_flags(of_sglang(*options, "--sglang-draft-tokens", "6").lowered.groups[0], "m")
    place = words.index("--speculative-algorithm")
    assert words[place : place + 10] == [
        *("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "m"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "2"),
        *("--speculative-num-draft-tokens", "6"),
    ]


def test_flags_of_ranks_share_the_limits_of_the_server() -> None:
    """SGLang divides them, and takes 0.3 of the conservativeness."""
    prepared = of_sglang("--request-routing-policy", "RR", "--max-num-seqs", "7", cluster=RANKS)
    (stage,) = engine_stages(prepared)
    (server,) = stage.servers
    words = server_flags(server.first, "m", len(server.groups))
    values = dict(itertools.pairwise(words))
    assert (values["--tp-size"], values["--dp-size"]) == ("2", "2")
    assert "--enable-dp-attention" in words
    assert values["--max-running-requests"] == "14"
    assert values["--schedule-conservativeness"] == "1.0"
    assert Sglang().settings(server)["ranks"] == 2
    asked = Generate(4096).body(
        engine_requests(prepared.workload, stops=False)[0], "m", prompt_alone=False, rank=1
    )
    assert asked["routed_dp_rank"] == 1


def test_flags_of_stages_are_those_of_one_process() -> None:
    prepared = of_sglang("--max-num-seqs", "7", cluster="h100_llama31_70b_tp4_pp2.json")
    (group,) = prepared.lowered.groups
    words = server_flags(group, "m")
    assert dict(itertools.pairwise(words))["--pp-max-micro-batch-size"] == "3"
    assert "--disable-overlap-schedule" in words
    assert not {"--pp-size", "--tp-size"} & set(words)


def test_flags_say_who_comes_first() -> None:
    options = ["--sglang-priority-scheduling", "--sglang-low-priority-values-first"]
    words = server_flags(of_sglang(*options).lowered.groups[0], "m")
    assert {"--enable-priority-scheduling", "--schedule-low-priority-values-first"} <= set(words)
    assert "--disable-priority-preemption" not in words
    assert not {"--enable-priority-scheduling"} & set(
        server_flags(of_sglang().lowered.groups[0], "m")
    )


def test_flags_give_the_pools_their_sizes(tmp_path: Path) -> None:
    """SGLang rounds the pool of windows down to whole pages."""
    cluster = tmp_path / "cluster.json"
    text = CLUSTER.read_text(encoding="utf-8")
    cluster.write_text(text.replace("meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b"))
    (group,) = of_sglang(cluster=str(cluster)).lowered.groups
    assert group.scheduler is not None
    values = dict(itertools.pairwise(server_flags(group, "m")))
    page, pages = int(values["--page-size"]), group.scheduler.window_pool.pages
    tokens = int(int(values["--max-total-tokens"]) * float(values["--swa-full-tokens-ratio"]))
    assert tokens // page == pages > 0


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        ("h100_multi_instance.json", ["--request-routing-policy", "VLLM_DP"], "several instances"),
        (CLUSTER.name, ["--scheduler", "vllm_v1"], "--scheduler vllm_v1"),
        (CLUSTER.name, ["--speculative-config", NGRAM], "speculative_config of ngram"),
    ],
)
def test_what_no_server_of_sglang_stands_for_is_refused(
    cluster: str, options: list[str], said: str
) -> None:
    prepared = of_sglang(*options, cluster=cluster)
    with pytest.raises(NotYetError, match=f"^{said}.*: `llmsim emulate sglang` does not run"):
        Sglang().check(prepared, [])


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["--page-size=64"], InputError, "--engine-args --page-size: `llmsim emulate` gives"),
        (["--tp-size", "2"], InputError, "--engine-args --tp-size"),
        (["--speculative-algorithm", "EAGLE"], InputError, "--engine-args --speculative-algori"),
        (["--hicache-size=3"], InputError, "--engine-args --hicache-size: `llmsim emulate` gives"),
        (["--enable-lora"], NotYetError, "--engine-args --enable-lora: `llmsim emulate sglang`"),
    ],
)
def test_options_of_the_server_do_not_contradict(
    words: list[str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"^{said}"):
        Sglang().check(of_sglang(), words)


def test_another_release_is_refused() -> None:
    (stage,) = engine_stages(of_sglang())
    (server,) = stage.servers
    assert Sglang().release_options("0.5.23", server) == []
    with pytest.raises(NotYetError, match=r"SGLang 0\.5\.9 is not emulated"):
        Sglang().release_options("0.5.9", server)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine-python", sys.executable], "has no SGLang"),
        (["--engine-args", "--port 1"], "--engine-args --port"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--cluster-config", str(CLUSTER), "--dataset", DATASET, *words]
    assert main(["emulate", "sglang", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("path", "event", "tokens"),
    [
        ("/v1/completions", b'{"choices":[{"text":" t1 t2","token_ids":[1,2]}]}', 2),
        ("/v1/chat/completions", b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', 0),
        ("/v1/chat/completions", b'{"choices":[{"delta":{"content":" t1 t2 t3"}}]}', 3),
        ("/v1/chat/completions", b'{"choices":[],"usage":{}}', 0),
    ],
)
def test_tokens_of_a_clients_stream_are_counted(path: str, event: bytes, tokens: int) -> None:
    """Chats refuse to tell token ids in a stream."""
    asked = SglangApi().body({"stream": True}, path, "000000007")
    assert asked["rid"] == "000000007"
    assert ("return_token_ids" in asked) == (path == "/v1/completions")
    assert SglangApi().tokens(event) == tokens


class HeardChannel:
    """Notes what an engine core says."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._goes_on = threading.Event()

    def dozes(self, until_ps: int | None = None) -> None:
        self._goes_on.clear()
        self.said.append("doze")

    def unpark(self) -> None:
        self.said.append("unpark")
        self._goes_on.set()

    def received(self, name: str, tokens: int) -> None:
        self.said.append((name, tokens))

    def left(self, names: list[str]) -> None:
        self.said.append(("left", *names))

    def produced(self, answers: list[Any]) -> None:
        self.said += answers

    def wait(self, until_ps: int) -> None:
        self.said.append(until_ps)

    def settles(self) -> None:
        self.said.append("settle")
        self._goes_on.set()

    def goes_on(self) -> None:
        assert self._goes_on.wait(10)

    def asked_for(self) -> None:
        self.said.append("asked for")

    def answers(self) -> None:
        self.said.append("answers")

    def close(self) -> None:
        self.said.append("bye")
        self._goes_on.set()


class Letters(Messages):
    """A message is a request, but "end" is the server's, and capitals say that a client left."""

    def requests(self, message: Any) -> list[tuple[str, int]]:
        return [(message, 3)] if message.islower() and message != "state?" else []

    def left(self, message: Any) -> list[str]:
        return [message.lower()] if message.isupper() else []

    def asks(self, message: Any) -> bool:
        return bool(message == "state?")

    def ends_server(self, message: Any) -> bool:
        return bool(message == "end")


def test_a_request_wakes_the_scheduler_before_it_counts_as_received() -> None:
    messages: queue.Queue[str] = queue.Queue()

    class Hears(HeardChannel):
        def dozes(self, until_ps: int | None = None) -> None:
            super().dozes()
            messages.put("a")

    channel = Hears()
    inbox = Inbox(channel, messages.get, Letters())  # type: ignore[arg-type]
    inbox.park()
    assert inbox.take() == "a"
    assert channel.said == ["doze", "unpark", ("a", 3)]
    with pytest.raises(IndexError):
        inbox.take()
    messages.put("end")
    inbox.park()
    assert inbox.is_over
    assert channel.said[-1] == "bye"


def test_a_server_that_ends_does_not_wait_for_the_clock(tmp_path: Path) -> None:
    """The clock may be gone by then: nobody answers."""
    path = tmp_path / "clock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        messages: queue.Queue[str] = queue.Queue()
        channel = Channel(str(path), 0)
        inbox = Inbox(channel, messages.get, Letters())
        waits = threading.Thread(target=inbox.settle)
        waits.start()
        messages.put("end")
        waits.join(10)
        assert not waits.is_alive()
        assert inbox.take() == "end"


def test_a_client_that_leaves_wakes_the_scheduler() -> None:
    channel, messages = HeardChannel(), queue.Queue[str]()
    inbox = Inbox(channel, messages.get, Letters())  # type: ignore[arg-type]
    messages.put("A")
    inbox.park()
    messages.put("end")
    while channel.said[-1] != "bye":
        inbox.park()
        inbox.take()
    assert [said for said in channel.said if said not in ("doze", "unpark")] == [
        ("left", "a"),
        "bye",
    ]


def test_a_question_is_answered_before_anything_else_comes() -> None:
    """Who asks waits, and what is under way is the question."""
    channel, messages = HeardChannel(), queue.Queue[str]()
    inbox = Inbox(channel, messages.get, Letters())  # type: ignore[arg-type]
    messages.put("state?")
    inbox.park()
    inbox.settle()
    assert inbox.take() == "state?"
    inbox.settle()
    assert channel.said == ["doze", "unpark", "asked for", "answers", "settle"]


def test_what_a_retraction_drops_is_sampled_again() -> None:
    requests = engine_requests(prepared_run(DATASET).workload, stops=False)
    tokens = requests[0].input_tokens
    for model in (ModelRunner(requests, _NoDrafts()), EndlessAnswers()):
        if isinstance(model, EndlessAnswers):
            model.joins(0, tokens)
        _, ((first,),) = answered(model, [["000000000", tokens, 0, 0, True, tokens]])
        _, ((second,),) = answered(model, [["000000000", 1, tokens, 0, False]])
        again = [["000000000", tokens + 1, 0, 0, True, tokens + 1]]
        assert answered(model, again)[1] == [[second]]
        assert first != second


class _NoDrafts:
    @property
    def acceptance(self) -> "_NoDrafts":
        return self

    def accepted(self, row: int, sampled: int, drafts: int) -> int:
        return 0


def test_stand_ins_are_found_before_the_program(tmp_path: Path) -> None:
    """As in SGLang's processes: kernels have stand-ins, and torchvision is not installed."""
    package = tmp_path / "transformers" / "utils"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "import_utils.py").write_text("def is_torchvision_available(): return True\n")
    settings: dict[str, object] = {"pid": 1}
    environment = Sglang().environment(
        engine_stages(of_sglang())[0].servers[0], settings, tmp_path / "server"
    )
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    code = (
        "from transformers.utils.import_utils import is_torchvision_available as a\n"
        "from sgl_kernel.utils import is_arch_support_pdl\nprint(a(), is_arch_support_pdl())"
    )
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert said.stdout.startswith(b"False "), said.stderr


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (CLUSTER.name, []),
        (CLUSTER.name, ["--no-sglang-overlap", "--block-size", "16"]),
        (CLUSTER.name, ["--speculative-config", EAGLE]),
        (CLUSTER.name, ["--endpoint", "chat", "--sglang-priority-scheduling"]),
        ("h100_multi_instance.json", ["--request-routing-policy", "RR"]),
        ("h100_llama31_70b_tp4_pp2.json", []),
        ("h100_nemotron3_nano_tp2.json", []),
        (RANKS, ["--request-routing-policy", "RR"]),
        (RANKS, ["--request-routing-policy", "RR", "--enable-hierarchical-cache", *SMALL_POOL]),
        (CLUSTER.name, ["--enable-hierarchical-cache", "--num-gpu-blocks-override", "200"]),
        (CLUSTER.name, ["--request-timeout", "0.03", "--max-concurrency", "4", *LONG_ANSWERS]),
    ],
)
def test_sglang_itself_is_the_simulation(
    cluster: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two emulations give the same bytes."""
    words = ["emulate", "sglang", "--engine-python", os.environ["LLMSIM_SGLANG_PYTHON"]]
    given = ["--cluster-config", str(CLUSTER.with_name(cluster)), *options]
    given += [] if "--dataset" in options else ["--dataset", DATASET]
    check_same_bytes([*words, *given], tmp_path, capsys)


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
@pytest.mark.parametrize("backend", ["sglang-oai", "sglang-oai-chat"])
def test_sglangs_own_load_generator_sees_what_its_server_gives(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["emulate", "sglang", "--engine-python", os.environ["LLMSIM_SGLANG_PYTHON"]]
    words += ["--cluster-config", str(CLUSTER), "--run-dir", str(tmp_path), "--"]
    words += ["python", "-m", "sglang.benchmark.serving", "--backend", backend]
    words += ["--base-url", "{base_url}", "--model", "{model}", "--tokenizer", "{tokenizer}"]
    words += ["--dataset-name", "random-ids", "--random-input-len", "40", "--num-prompts", "8"]
    words += ["--random-output-len", "9", "--request-rate", "20"]
    words += ["--output-file", str(tmp_path / "own.jsonl"), "--output-details"]
    assert main(words) == 0
    own = json.loads((tmp_path / "own.jsonl").read_text(encoding="utf-8"))
    seen = json.loads((tmp_path / "client.json").read_text(encoding="utf-8"))
    assert (own["completed"], seen["completed"]) == (8, 9)  # the first one is a warm-up
    assert own["ttfts"] == pytest.approx(seen["ttfts"][1:], abs=1e-6)
