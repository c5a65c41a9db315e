"""`llmsim serve` as its clients see it, over HTTP."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import HANGS_S

pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra serve)")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed (extra serve)")

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
MODEL = "meta-llama/Llama-3.1-8B"


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int

    def call(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a call; bytes are sent as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, content

    def json(self, path: str, body: Any = None, **headers: str) -> Any:
        status, _, content = self.call(
            path, body, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        assert status == 200, content
        return json.loads(content)

    def error(self, path: str, body: Any) -> tuple[int, str]:
        status, _, content = self.call(path, body)
        return status, json.loads(content)["error"]["message"]

    def stream(self, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
        """The chunks; the stream ends as it should."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, seen, content = self.call(path, {**body, "stream": True}, named)
        assert status == 200 and seen["content-type"].startswith("text/event-stream"), content
        events = content.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def start(*arguments: str) -> Server:
    command = [sys.executable, "-m", "llmsim", "serve", "--cluster-config", str(CLUSTER)]
    process = subprocess.Popen(
        [*command, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    ready = process.stdout.readline()
    assert ready.startswith("ready http://127.0.0.1:"), process.stderr.read()
    return Server(process, int(ready.rsplit(":", 1)[1]))


def end(server: Server) -> str:
    """Ends it as service managers do; returns what it said on stderr."""
    server.process.send_signal(signal.SIGTERM)
    _, errors = server.process.communicate(timeout=HANGS_S)
    assert server.process.returncode == 0
    return errors


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = start("--speed", "20")
    yield one
    assert end(one) == ""


def test_a_completion_has_the_asked_length_and_the_same_text_each_time(server: Server) -> None:
    body = {"model": MODEL, "prompt": "one two three four", "max_tokens": 7}
    first, second = (server.json("/v1/completions", body) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
    text = first["choices"][0]["text"]
    assert server.json("/tokenize", {"prompt": text})["count"] == 7
    assert server.json("/v1/completions", {**body, "prompt": "five"})["choices"] != first["choices"]


def test_a_stream_is_a_chunk_per_token_and_ends_with_usage(server: Server) -> None:
    body = {"prompt": "one two three four", "max_tokens": 5}
    whole = server.json("/v1/completions", body)
    *chunks, last = server.stream(
        "/v1/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"]
    assert last["choices"] == [] and last["usage"] == whole["usage"]


def test_a_chat_begins_with_its_role(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 3}
    opening, *rest = server.stream("/v1/chat/completions", body)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = server.json("/v1/chat/completions", {**body, "logprobs": True})
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in rest)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert len(whole["choices"][0]["logprobs"]["content"]) == len(rest) == 3


def test_several_prompts_and_samples_are_numbered_in_order(server: Server) -> None:
    body = {"prompt": ["a b", "c d e"], "n": 2, "max_tokens": 4, "echo": True, "logprobs": 1}
    whole = server.json("/v1/completions", body)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["choices"][3]["text"].startswith("c d e ")
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == 4
    assert len({choice["text"] for choice in whole["choices"]}) == 4
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    chunks = server.stream("/v1/completions", body)
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_what_a_conversation_said_before_is_found_in_the_prefix_cache(server: Server) -> None:
    def hits() -> float:
        text = server.call("/metrics")[2].decode()
        (line,) = [
            one for one in text.splitlines() if one.startswith("vllm:prefix_cache_hits_total{")
        ]
        return float(line.split()[-1])

    messages = [{"role": "user", "content": "tell me a story about caches " * 20}]
    answer = server.json("/v1/chat/completions", {"messages": messages, "max_tokens": 64})
    before = hits()
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
    asked = server.json("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert hits() - before > answer["usage"]["total_tokens"] - 2 * 16
    assert asked["usage"]["prompt_tokens"] >= hits() - before


def test_metrics_are_vllms(server: Server) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    server.json("/v1/completions", {"prompt": "x y z", "max_tokens": 3})
    families = {
        family.name: family
        for family in text_string_to_metric_families(server.call("/metrics")[2].decode())
    }
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:cache_config_info",
    } <= families.keys()
    finished = {
        sample.labels["finished_reason"]: sample.value
        for sample in families["vllm:request_success"].samples
        if sample.name.endswith("_total")
    }
    first = families["vllm:time_to_first_token_seconds"].samples
    assert finished["length"] == next(s.value for s in first if s.name.endswith("_count")) > 0


def test_models_and_adapters(server: Server) -> None:
    (card,) = server.json("/v1/models")["data"]
    assert (card["id"], card["max_model_len"]) == (MODEL, 131072)
    adapter = {"lora_name": "mine", "lora_path": "/adapters/mine"}
    assert server.call("/v1/load_lora_adapter", adapter)[0] == 200
    assert [one["id"] for one in server.json("/v1/models")["data"]] == [MODEL, "mine"]
    whole = server.json("/v1/completions", {"model": "mine", "prompt": "x", "max_tokens": 1})
    assert whole["model"] == "mine"
    assert server.error("/v1/load_lora_adapter", adapter)[0] == 400
    assert "load_inplace" in server.error("/v1/load_lora_adapter", adapter)[1]
    assert server.call("/v1/load_lora_adapter", {**adapter, "load_inplace": True})[0] == 200
    assert server.call("/v1/unload_lora_adapter", adapter)[0] == 200
    assert server.error("/v1/unload_lora_adapter", adapter)[0] == 404
    assert server.error("/v1/completions", {"model": "mine", "prompt": "x"})[0] == 404
    for name, words in (
        ("Llama-3.1-8B", "the name of a served model"),
        ("", "must be given"),
        ("x" * 129, "more than 128 letters"),
    ):
        status, said = server.error("/v1/load_lora_adapter", {**adapter, "lora_name": name})
        assert (status, words in said) == (400, True)
    assert b"lora_requests_info" not in server.call("/metrics")[2]
    assert server.call("/health")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("completions", {"prompt": "x", "model": "other"}, 404, "'other' does not exist"),
        ("completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"),
        ("completions", {"prompt": "x", "max_tokens": 200000}, 400, "131072 tokens"),
        ("completions", {"prompt": "x", "max_tokens": "y"}, 400, "$.max_tokens"),
        ("completions", {"prompt": "", "max_tokens": 2}, 400, "prompt is empty"),
        ("completions", {"prompt": [], "max_tokens": 2}, 400, "neither a text"),
        ("completions", {"prompt": "x", "n": 0}, 400, "n is 0"),
        ("completions", {"prompt": "x", "temperature": "hot"}, 400, "$.temperature"),
        ("completions", {"prompt": "x", "temperature": -1}, 400, "$.temperature"),
        ("completions", {"prompt": "x", "top_p": 0}, 400, "$.top_p"),
        ("completions", {"prompt": "x", "presence_penalty": 3}, 400, "$.presence_penalty"),
        ("completions", {}, 400, "prompt"),
        ("completions", b"{", 400, "cannot be read"),
        ("completions", b"\xff" * 10, 400, "cannot be read"),
        ("completions", b"[" * 100_000, 400, "cannot be read"),
        ("chat/completions", {"messages": []}, 400, "messages is empty"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "image_url",
        ),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    server: Server, path: str, body: Any, status: int, words: str
) -> None:
    code, message = server.error(f"/v1/{path}", body)
    assert code == status and words in message


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/embeddings", {"input": "x"}, 404, "Not Found"),
        ("/", None, 404, "Not Found"),
        ("/v1/completions", None, 405, "Method Not Allowed"),
    ],
)
def test_paths_that_it_does_not_have_are_answered_as_errors_of_the_api(
    server: Server, path: str, body: Any, status: int, kind: str
) -> None:
    code, named, content = server.call(path, body)
    error = json.loads(content)["error"]
    assert (code, error["code"], error["type"], error["param"]) == (status, status, kind, None)
    assert error["message"].startswith(f"{kind}: {'GET' if body is None else 'POST'} {path} is no")
    assert named["content-type"] == "application/json"
    assert ("allow" in named) == (status == 405)


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    status, message = server.error("/v1/completions", b"x" * ((16 << 20) + 1))
    assert status == 413 and "16777216 bytes" in message


def test_a_client_that_goes_frees_what_its_request_held(server: Server) -> None:
    def running() -> float:
        lines = server.call("/metrics")[2].decode().splitlines()
        return sum(
            float(s.split()[-1]) for s in lines if s.startswith("vllm:num_requests_running{")
        )

    body = json.dumps({"prompt": "x", "max_tokens": 100_000, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + body)
        assert client.recv(10)
        assert running() == 1
    deadline = time.monotonic() + HANGS_S
    while running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running() == 0


def test_the_run_of_what_was_served_is_what_clients_saw(tmp_path: Path) -> None:
    """The folder has the same counts; the trace of the requests gives the run folder."""
    server = start("--speed", "20", "--run-dir", str(tmp_path / "run"), "--output-tokens", "9")
    texts = [f"request {number} " * (number + 1) for number in range(6)]
    threads = [
        threading.Thread(target=server.json, args=("/v1/completions", {"prompt": text}))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = server.call("/metrics")[2].decode().splitlines()
    (seen,) = [s for s in lines if s.startswith("vllm:e2e_request_latency_seconds_sum")]
    assert end(server) == ""
    trace = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").open()]
    assert [line["output_toks"] for line in trace] == [9] * 6
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["completed"] == 6
    mean_s = summary["mean_e2el_ms"] / 1000
    assert float(seen.split()[-1]) == pytest.approx(6 * mean_s, rel=1e-8)


def test_a_key_is_asked_of_the_api_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    server = start("--api-key-file", str(key))
    body = {"prompt": "x", "max_tokens": 1}
    assert server.error("/v1/completions", body)[0] == 401
    assert server.call("/v1/completions", body, {"Authorization": "Bearer wrong"})[0] == 401
    assert server.call("/v1/completions", body, {"Authorization": "Bearer secret"})[0] == 200
    assert server.call("/health")[0] == server.call("/metrics")[0] == 200
    end(server)


class VirtualClient:
    """Takes part in virtual time; keeps its answers with the times of their chunks."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name
        self._threads: list[threading.Thread] = []
        self.answers: dict[int, Any] = {}
        server.json("/virtual/join", {"client": name})

    def ask(self, number: int, at_s: float | None = None, model: str = MODEL) -> None:
        headers = {"X_Virtual_Client": self._name}
        if at_s is not None:
            headers["X_Virtual_Time"] = repr(at_s)
        prompt = f"{self._name} {number} " * 30
        body = {"model": model, "prompt": prompt, "max_tokens": 20}

        def act() -> None:
            chunks = self._server.stream("/v1/completions", body, **headers)
            self.answers[number] = [(one["virtual_time"], one["choices"]) for one in chunks]

        self._threads.append(threading.Thread(target=act))
        self._threads[-1].start()

    def sleep(self, **until: float) -> float:
        body = {"client": self._name, "sent": len(self._threads), **until}
        return float(self._server.json("/virtual/sleep", body)["now"])

    def leave(self) -> None:
        self._server.json("/virtual/leave", {"client": self._name})
        for thread in self._threads:
            thread.join()


def ask_at_times(client: VirtualClient) -> None:
    for number in range(8):
        at_s = round(0.05 * number + 0.001, 3)
        client.ask(number, at_s)
        while client.sleep(until=at_s) < at_s:
            pass
    client.leave()


def ask_one_after_the_other(client: VirtualClient) -> None:
    for number in range(4):
        client.ask(number)
        client.sleep()
    client.leave()


def virtual_session() -> list[dict[int, Any]]:
    server = start("--clock", "warp")
    timed, patient = (VirtualClient(server, name) for name in ("timed", "patient"))
    threads = [
        threading.Thread(target=ask_at_times, args=(timed,)),
        threading.Thread(target=ask_one_after_the_other, args=(patient,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end(server)
    return [timed.answers, patient.answers]


def test_virtual_time_waits_for_clients_and_repeats_itself() -> None:
    """Two clients that take part: one asks at times of its own, one waits for each answer."""
    first = virtual_session()
    assert [len(answers) for answers in first] == [8, 4]
    assert first == virtual_session()


def test_calls_of_virtual_time_need_the_warp_clock(server: Server) -> None:
    assert "--clock warp" in server.error("/virtual/join", {"client": "x"})[1]


def lora_requests(server: Server) -> tuple[str, str]:
    """The adapters that wait and that run, as `/metrics` names them."""
    text = server.call("/metrics")[2].decode()
    (line,) = [one for one in text.splitlines() if one.startswith("vllm:lora_requests_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert labels["max_lora"] == "1"
    return labels["waiting_lora_adapters"], labels["running_lora_adapters"]


def test_adapters_wait_for_a_slot_as_in_the_run_of_their_trace(tmp_path: Path) -> None:
    """Two adapters and the model itself; adapters of one name and two paths are two."""
    folder = tmp_path / "run"
    slots = ["--engine-profile", "vllm-0.33", "--max-loras", "1"]
    server = start("--clock", "warp", *slots, "--run-dir", str(folder))
    assert lora_requests(server) == ("", "")
    client = VirtualClient(server, "a")
    for number, (name, path) in enumerate([("one", "/1"), ("two", "/2"), ("one", "/3")]):
        adapter = {"lora_name": name, "lora_path": path, "load_inplace": number == 2}
        assert server.call("/v1/load_lora_adapter", adapter)[0] == 200
        client.ask(number, 0.001 * (number + 1), name)
        client.sleep(until=0.001 * (number + 1))
    client.ask(3, 0.004, MODEL)
    client.sleep(until=0.01)
    assert lora_requests(server) == ("two,one", "one")
    client.leave()
    assert end(server) == ""
    first = [client.answers[number][0][0] for number in range(4)]
    last = [client.answers[number][-1][0] for number in range(4)]
    assert first[0] < first[3] < last[0] < first[1] < last[1] < first[2]
    trace = [json.loads(line) for line in (folder / "trace.jsonl").open()]
    assert [line.get("adapter") for line in trace] == ["one", "two", "one#", None]
    table = pytest.importorskip("pyarrow.parquet").read_table(folder / "requests.parquet")
    finish_s = [time_ps / 1e12 for time_ps in table["finish_ps"].to_pylist()]
    assert finish_s == pytest.approx(last, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clock", "fast"], '--clock is "fast"; it must be real or warp'),
        (["--speed", "0"], "--speed is 0"),
        (["--clock", "warp", "--speed", "2"], "virtual time has no speed"),
        (["--output-tokens", "0"], "--output-tokens is 0"),
        (["--port", "99999"], "--port 99999"),
        (["--api-key-file", "/nowhere/key"], "/nowhere/key: cannot be read"),
        (["--tokenizer", "/nowhere/tokenizer.json"], "--tokenizer /nowhere/tokenizer.json"),
        (["--max-concurrency", "3"], "--max-concurrency"),
        (["--tp-sise", "3"], "--tp-sise"),
        (["--dataset=t.jsonl"], "--dataset: `llmsim serve` simulates what clients send"),
    ],
)
def test_wrong_options_are_told(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmsim.cli import main

    assert main(["serve", "--cluster-config", str(CLUSTER), *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out
