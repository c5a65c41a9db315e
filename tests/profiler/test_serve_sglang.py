"""Logs of SGLang: what its scheduler process writes down, with made-up doubles of its scheduler and
of its engine.
"""

import asyncio
import itertools
import json
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.profiler.serve import serve_sglang, sglang_batches
from llmsim.profiler.serve.serve_log import Log, ServeOptions, jobs_of, serve_log, summary_of
from llmsim.profiler.serve.sglang_batches import batch_of, record_batches, take_steps
from tests.profiler.test_host_time import LLAMA

TRACE = "synthetic:n=6,rate=20,input=uniform:20-100,output=uniform:3-9,seed=3"
STEP_S = 0.002
CHUNK = 64
POOL = 20_000


class Mode:
    def __init__(self, *, decode: bool) -> None:
        self._decode = decode

    def is_decode(self) -> bool:
        return self._decode


class Batch:
    """SGLang's batch, as far as it is read: a chunk of a prompt, or decodes."""

    def __init__(self, requests: list["Request"]) -> None:
        self.requests = requests
        first = requests[0]
        self.forward_mode = Mode(decode=first.read == first.prompt)
        if self.forward_mode.is_decode():
            lengths = [each.prompt + each.come for each in requests]
            self.seq_lens_cpu = np.array(lengths)
        else:
            self.extend_lens = [min(CHUNK, first.prompt - first.read)]
            self.prefix_lens = [first.read]


class Request:
    def __init__(self, prompt: int, answer: int) -> None:
        self.prompt, self.answer = prompt, answer
        self.read = self.come = 0
        self.tokens: asyncio.Queue[int] = asyncio.Queue()


class Result:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.copy_done = self
        self.ready = time.monotonic() + STEP_S

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.ready - time.monotonic()))


class Scheduler:
    """One prompt at a time before all decodes; the next step is launched while one runs."""

    def __init__(self) -> None:
        self.waiting_queue: list[Request] = []
        self.running_batch = types.SimpleNamespace(reqs=[])
        self.token_to_kv_pool_allocator = types.SimpleNamespace(available_size=lambda: POOL - 100)
        self.max_total_num_tokens = POOL

    def run_batch(self, batch: Batch) -> Result:
        return Result(batch)

    def process_batch_result(self, batch: Batch, result: Result) -> None:
        for each in batch.requests:
            if not batch.forward_mode.is_decode():
                each.read += batch.extend_lens[0]
                if each.read < each.prompt:
                    return
                self.waiting_queue.remove(each)
                self.running_batch.reqs.append(each)
            each.come += 1
            each.tokens.put_nowait(each.come)
            if each.come == each.answer:
                self.running_batch.reqs.remove(each)

    def on_idle(self) -> None:
        pass

    async def event_loop(self) -> None:
        while True:
            requests = self.waiting_queue[:1] or list(self.running_batch.reqs)
            if requests:
                batch = Batch(requests)
                self.process_batch_result(batch, self.run_batch(batch))
            else:
                self.on_idle()
            await asyncio.sleep(0)


class Engine:
    """SGLang's `Engine` over the scheduler above, in this process."""

    run_scheduler_process_func: Any = None

    def __init__(self, **arguments: Any) -> None:
        if arguments.pop("no_such", None):
            raise TypeError("no_such is no argument")
        self.server_args = types.SimpleNamespace(
            page_size=None,
            max_running_requests=arguments["max_running_requests"],
            chunked_prefill_size=arguments["chunked_prefill_size"],
            context_length=arguments.get("context_length"),
            disable_radix_cache=arguments["disable_radix_cache"],
            disable_overlap_schedule=False,
            device="cpu",
            attention_backend="fa3",
            sampling_backend="pytorch",
            moe_runner_backend="auto",
            mem_fraction_static=0.9,
        )
        infos = [{"max_total_num_tokens": POOL}]
        self._scheduler_init_result = types.SimpleNamespace(scheduler_infos=infos)
        self.scheduler = Scheduler()
        self.loop = asyncio.ensure_future(self.scheduler.event_loop())

    async def async_generate(
        self, input_ids: list[int], sampling_params: dict[str, Any], stream: bool
    ) -> AsyncIterator[dict[str, Any]]:
        assert stream and sampling_params["ignore_eos"]
        request = Request(len(input_ids), sampling_params["max_new_tokens"])
        self.scheduler.waiting_queue.append(request)
        return self._tokens(request)

    async def _tokens(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        come = 0
        while come < request.answer:
            come = await request.tokens.get()
            yield {"meta_info": {"completion_tokens": come}}

    def shutdown(self) -> None:
        self.loop.cancel()


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServeOptions]:
    """SGLang's modules are made up, and their scheduler records as it would in its process."""
    modules = {
        "sglang": types.SimpleNamespace(__version__="0.5.11"),
        "sglang.srt.entrypoints.engine": types.SimpleNamespace(Engine=Engine),
        "torch": types.SimpleNamespace(
            __version__="2.11.0", version=types.SimpleNamespace(cuda=None)
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    for name in ("sglang.srt", "sglang.srt.entrypoints"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr("llmsim.profiler.serve.serve_log._engine", lambda wanted: wanted)
    methods = {
        name: getattr(Scheduler, name) for name in ("run_batch", "process_batch_result", "on_idle")
    }
    record = tmp_path / "record.jsonl"
    record_batches(Scheduler, record)
    monkeypatch.setattr(
        serve_sglang, "take_steps", lambda _, last_token: _awaited_steps(record, last_token)
    )
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA | {"architectures": ["LlamaForCausalLM"]}))
    yield ServeOptions(
        str(tmp_path / "tiny.json"),
        TRACE,
        tmp_path / "log",
        engine="sglang",
        dtype="fp32",
        max_num_seqs=8,
        max_num_batched_tokens=CHUNK,
        hardware="H200",
    )
    for name, method in methods.items():
        setattr(Scheduler, name, method)


def _awaited_steps(record: Path, last_token: float) -> list[Any]:
    """The scheduler is in this process, so it says nothing while its record is waited for."""
    with record.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"idle": last_token}) + "\n")
    return take_steps(record, last_token)


def logged(options: ServeOptions, traces: list[str]) -> list[Log]:
    return [log for _, log in serve_log(options, traces)]


def test_a_trace_is_replayed_and_can_be_simulated(options: ServeOptions, tmp_path: Path) -> None:
    [log] = logged(options, [TRACE])
    jobs = jobs_of(TRACE, 0)
    for job, each in zip(jobs, log.stamps, strict=True):
        assert (each.request_id, len(each.tokens)) == (job.request_id, job.output_tokens)
        assert each.arrival <= each.tokens[0] and each.tokens == sorted(each.tokens)
    assert 0 < summary_of(log)["mean_ttft_ms"] < 60_000
    instance = log.facts["instance"]
    assert instance["num_gpu_blocks_override"] == log.facts["num_gpu_blocks"] == POOL
    assert (instance["scheduler"], instance["block_size"]) == ("sglang", 1)
    assert instance["engine_profile"] == "sglang-0.5.10"  # the newest that 0.5.11 is not older than
    run, cluster = str(tmp_path / "run"), str(options.output / "cluster.json")
    assert main(["run", "--cluster-config", cluster, "--dataset", TRACE, "--run-dir", run]) == 0
    assert main(["validate", str(options.output / "requests.jsonl"), run]) == 0


def test_every_token_is_in_one_step(options: ServeOptions) -> None:
    traces = [TRACE, TRACE.replace("seed=3", "seed=4")]
    for trace, log in zip(traces, logged(options, traces), strict=True):
        computed = sum(new for step in log.steps for new, _ in step.batch)
        assert computed == sum(
            job.input_tokens + job.output_tokens - 1 for job in jobs_of(trace, 0)
        )
        for step in log.steps:
            assert step.extra["scheduled"] <= step.extra["launched"] <= step.end
            assert step.extra["kv_cache_usage"] == pytest.approx(0.005)
        pairs = itertools.pairwise(log.steps)
        assert all(before.end <= after.start for before, after in pairs)
        longest = max(cached + new for step in log.steps for new, cached in step.batch)
        assert longest == max(job.input_tokens + job.output_tokens - 1 for job in jobs_of(trace, 0))


def test_what_sglang_refuses_is_one_sentence(options: ServeOptions) -> None:
    with pytest.raises(InputError, match="SGLang cannot start: no_such is no argument"):
        logged(replace(options, engine_arguments={"no_such": 1}), [TRACE])
    with pytest.raises(InputError, match="--clock cpu: SGLang's engine stamps wall time"):
        logged(replace(options, clock="cpu"), [TRACE])


def test_the_arguments_are_those_of_sglang(tmp_path: Path, options: ServeOptions) -> None:
    more = replace(options, max_model_len=512, kv_tokens=4096, tensor_parallel=2, seed=5)
    arguments = serve_sglang.engine_arguments(more, str(tmp_path))
    assert arguments["context_length"] == 512 and arguments["max_total_tokens"] == 4096
    assert arguments["tp_size"] == 2 and arguments["random_seed"] == 5
    assert arguments["dtype"] == "float32" and arguments["disable_radix_cache"] is True


def test_new_and_cached_tokens_of_a_batch() -> None:
    prompt = Request(100, 4)
    prompt.read = CHUNK
    assert batch_of(Batch([prompt])) == [(36, 64)]
    prompt.read, prompt.come = 100, 2
    other = Request(7, 3)
    other.read, other.come = 7, 1
    # The second answer token of the prompt of 100 is computed into place 101.
    assert batch_of(Batch([prompt, other])) == [(1, 101), (1, 7)]


def test_a_scheduler_that_does_not_become_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_batches, "LONGEST_WAIT_S", 0.05)
    record = tmp_path / "record.jsonl"
    record.write_text(json.dumps({"idle": 1.0}) + "\n" + '{"idle": 3')
    with pytest.raises(TimeoutError, match="not idle within"):
        take_steps(record, 2.0)
    assert take_steps(record, 1.0) == [] and record.read_text() == ""
