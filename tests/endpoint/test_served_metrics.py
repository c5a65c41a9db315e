"""`/metrics` against a table of vLLM's metrics, an installed vLLM, and the run of its requests."""

import asyncio
import csv
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import HANGS_S

pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra serve)")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed (extra serve)")

from prometheus_client.parser import text_string_to_metric_families

import llmsim
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Status
from llmsim.endpoint.building import built
from llmsim.endpoint.engine.async_engine import Samples, Stream
from llmsim.endpoint.engine.clock import NEVER_PS
from llmsim.endpoint.http.calls import Endpoint
from llmsim.endpoint.recorder import TraceRecorder
from llmsim.export.benchmark_formats.vllm_metrics import Buckets

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "vllm_0.33_metrics.csv"
LEFT_OUT = {
    "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu",
}  # fmt: skip
"""vLLM fills them with --enable-mfu-metrics alone."""
DRAFTS = {"num_speculative_tokens": 3, "model": "meta-llama/Llama-3.2-1B", "acceptance_rate": 0.7}

Described = tuple[str, frozenset[str], tuple[float, ...]]


def table(max_model_len: int) -> dict[str, Described]:
    """(type, labels, bounds) of each metric that vLLM 0.33 registers."""
    found: dict[str, Described] = {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            bounds = tuple(float(bound) for bound in row["buckets"].split() if bound != "tokens")
            if row["buckets"] == "tokens":
                bounds = Buckets.TOKENS.bounds(max_model_len)
            found[row["name"]] = (row["type"], frozenset(row["labels"].split()), bounds)
    return found


class Scrape:
    """What `/metrics` says."""

    def __init__(self, text: str) -> None:
        self.families = {one.name: one for one in text_string_to_metric_families(text)}

    def values(self, name: str, **labels: str) -> list[float]:
        """Of the samples with these labels."""
        family = self.families[f"vllm:{name.removesuffix('_total')}"]
        return [
            one.value
            for one in family.samples
            if one.name in (f"vllm:{name}", f"vllm:{name}_total")
            and labels.items() <= one.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))

    def described(self) -> dict[str, Described]:
        found = {}
        for name, family in self.families.items():
            samples = [one for one in family.samples if not one.name.endswith("_created")]
            if not name.startswith("vllm:") or not samples:
                continue
            labels = frozenset().union(*(one.labels for one in samples)) - {"le"}
            bounds = {float(one.labels["le"]) for one in samples if "le" in one.labels}
            finite = tuple(sorted(bounds - {float("inf")}))
            found[name.removeprefix("vllm:")] = (family.type, labels, finite)
        return found

    def histogram(self, name: str, values: Any) -> None:
        """Asserts that it holds these values."""
        family = self.families[f"vllm:{name}"]
        counts: dict[float, float] = {}
        for one in family.samples:
            if one.name.endswith("_bucket"):
                bound = float(one.labels["le"])
                counts[bound] = counts.get(bound, 0) + one.value
        array = np.asarray(values, dtype=np.float64)
        assert counts == {bound: np.count_nonzero(array <= bound) for bound in counts}, name
        total = sum(one.value for one in family.samples if one.name.endswith("_sum"))
        assert total == pytest.approx(array.sum(), rel=1e-9, abs=1e-12), name


class Hand:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.time_ps = 0

    def now_ps(self) -> int:
        return self.time_ps

    def may_reach_ps(self, next_event_ps: int) -> int:
        return self.time_ps

    def wait_s(self, next_event_ps: int) -> float | None:
        return None

    def answered(self, client: str) -> None:
        pass


class Session:
    """Requests of clients, without HTTP: the endpoint, its metrics, and the run of its trace."""

    def __init__(self, folder: Path, stack: ExitStack, *words: str, cluster: str, **options: Any):
        self._path = ROOT / "cluster_config" / cluster
        given = ["--cluster-config", str(self._path), "--dataset", "live", *words]
        self.clock = Hand()
        self._recorder = TraceRecorder(stack, folder)
        self._options = options
        self.endpoint: Endpoint = built(
            checked_options(given),
            self.clock,
            self._recorder,
            tokenizer=None,
            output_tokens=16,
            rows=options.pop("rows", 4000),
            api_key="",
        )

    def scrape(self) -> Scrape:
        return Scrape(self.endpoint.metrics.text().decode())

    async def ask(
        self, time_ns: int, prompt: list[int], tokens: int, samples: int = 1
    ) -> list[Stream]:
        """A prompt with some answers, so many ns after the start; earlier events happen first."""
        self.clock.time_ps = time_ns * 1000
        name = self.endpoint.models[0].name
        together = Samples(samples)
        streams = []
        for sample in range(samples):
            answer = [sample + 10 * place for place in range(tokens)]
            streams.append(Stream(prompt, answer, 0, name, samples=together))
            self.endpoint.engine.submit(streams[-1])
        await asyncio.sleep(0)
        return streams

    async def wait(self) -> None:
        """Until nothing happens any more."""
        self.clock.time_ps = NEVER_PS - 1
        self.endpoint.engine.go_on()
        await asyncio.sleep(0.001)
        assert self.endpoint.engine.unfinished == 0 and self.endpoint.engine.failure is None

    def run(self) -> Any:
        """The run of the trace."""
        trace = self._recorder.finish(self.clock.time_ps)
        assert trace is not None
        return llmsim.run(self._path, trace, **self._options)

    def requests(self) -> Any:
        """The table of its requests."""
        return self.run().requests


def prompts(seed: int, number: int, longest: int) -> list[list[int]]:
    """Some that begin as others do."""
    draw = random.Random(seed)
    shared = [draw.randrange(1000) for _ in range(longest)]
    found = []
    for _ in range(number):
        tokens = draw.randrange(20, longest)
        common = draw.randrange(tokens)
        found.append(shared[:common] + [draw.randrange(5000) for _ in range(tokens - common)])
    return found


def served(
    session: Session, number: int, longest: int, answer: int, gap_ns: int = 4_000_000
) -> Any:
    """(metrics, requests that finished) after some requests; each fourth prompt has two answers,
    and one client in eleven goes.
    """
    draw = random.Random(11)

    async def act() -> None:
        time_ns = 0
        leaving: list[Stream] = []
        for n, prompt in enumerate(prompts(3, number, longest)):
            time_ns += draw.randrange(1, gap_ns)
            samples = 2 if n % 4 == 3 else 1
            streams = await session.ask(time_ns, prompt, draw.randrange(1, answer), samples)
            for stream in leaving:
                session.endpoint.engine.abort(stream)
            leaving = streams if n % 11 == 10 else []
        await session.wait()

    asyncio.run(act())
    scrape, requests = session.scrape(), session.requests()
    ended = requests["status"].value_counts()
    for reason, status in (("length", "finished"), ("abort", "cancelled")):
        assert scrape.total("request_success", finished_reason=reason) == ended.get(status, 0)
    return scrape, requests[requests["status"] == "finished"], requests


def check_requests(scrape: Scrape, finished: Any) -> None:
    """Every histogram of requests holds what the table of requests says."""
    seconds = {
        "e2e_request_latency": finished["finish_ps"] - finished["arrival_ps"],
        "request_queue_time": finished["scheduled_ps"] - finished["queued_ps"],
        "request_prefill_time": finished["first_token_ps"] - finished["scheduled_ps"],
        "request_decode_time": finished["finish_ps"] - finished["first_token_ps"],
        "request_inference_time": finished["finish_ps"] - finished["scheduled_ps"],
    }
    for name, times_ps in seconds.items():
        scrape.histogram(f"{name}_seconds", times_ps.astype(float) / 1e12)
    later = (finished["emitted_tokens"] - 1).clip(lower=1)
    scrape.histogram(
        "request_time_per_output_token_seconds",
        seconds["request_decode_time"].astype(float) / later / 1e12,
    )
    computed = finished["input_tokens"] - finished["cached_tokens"]
    scrape.histogram("request_prompt_tokens", finished["input_tokens"])
    scrape.histogram("request_generation_tokens", finished["emitted_tokens"])
    scrape.histogram("request_params_max_tokens", finished["output_tokens"])
    scrape.histogram("request_num_preemptions", finished["preemptions"])
    scrape.histogram("request_prefill_kv_computed_tokens", computed)


def check_sources(scrape: Scrape, requests: Any) -> None:
    """Prompts by their sources add up, and steps have the tokens that were computed and given."""
    ran = requests[requests["scheduled_ps"].notna()]
    assert scrape.total("prompt_tokens") == ran["input_tokens"].sum()
    assert scrape.total("prompt_tokens_cached") == ran["cached_tokens"].sum()
    assert scrape.total("generation_tokens") == requests["emitted_tokens"].sum()
    assert scrape.total("num_preemptions") == requests["preemptions"].sum()
    assert scrape.total("prompt_tokens_by_source") == scrape.total("prompt_tokens")
    local = scrape.total("prompt_tokens_by_source", source="local_compute")
    assert local == scrape.total("prompt_tokens") - scrape.total("prompt_tokens_cached")
    found = scrape.total("prefix_cache_hits") + scrape.total("external_prefix_cache_hits")
    assert scrape.total("prompt_tokens_cached_by_source") == found


def test_all_metrics_of_vllm_are_there_with_their_types_labels_and_buckets(tmp_path: Path) -> None:
    words = ["--engine-profile", "vllm-0.33", "--max-loras", "2"]
    words += ["--speculative-config", json.dumps(DRAFTS), "--max-model-len", "1000"]
    with ExitStack() as stack:
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json")
        found = session.scrape().described()
    cache = found.pop("cache_config_info")
    assert cache[0] == "gauge" and cache[1] >= {"engine", "block_size", "num_gpu_blocks"}
    assert found == {name: one for name, one in table(1000).items() if name not in LEFT_OUT}


def test_the_table_is_that_of_the_installed_vllm() -> None:
    python = os.environ.get("LLMSIM_ENGINE_PYTHON", sys.executable)
    script = Path(__file__).parent / "vllm_registers.py"
    ran = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=HANGS_S)
    if ran.returncode != 0:
        pytest.skip("vLLM is not installed (LLMSIM_ENGINE_PYTHON names an interpreter with it)")
    said = json.loads(ran.stdout.splitlines()[-1])
    if not said["version"].startswith("0.33"):
        pytest.skip(f"the table is that of vLLM 0.33, and {said['version']} is installed")
    registered = {
        name: (kind, frozenset(labels), tuple(bounds))
        for name, (kind, labels, bounds) in said["metrics"].items()
    }
    assert registered == table(1000)


def test_values_are_those_of_the_run_with_preemptions_and_several_answers(tmp_path: Path) -> None:
    words = ["--engine-profile", "vllm-0.33", "--num-gpu-blocks-override", "120"]
    options = {"engine_profile": "vllm-0.33", "num_gpu_blocks_override": 120}
    with ExitStack() as stack:
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json", **options)
        scrape, finished, requests = served(session, 80, 400, 150)
    check_requests(scrape, finished)
    check_sources(scrape, requests)
    assert scrape.total("num_preemptions") > 5
    assert requests["cached_tokens"].sum() > 0
    answered = scrape.families["vllm:request_params_n"].samples
    counts = {one.name: one.value for one in answered}
    assert counts["vllm:request_params_n_sum"] > counts["vllm:request_params_n_count"] > 40
    steps = {one.name: one.value for one in scrape.families["vllm:iteration_tokens_total"].samples}
    most = scrape.total("generation_tokens") + scrape.total(
        "prompt_tokens_by_source", source="local_compute"
    )
    gave = requests[requests["first_token_ps"].notna()]
    least = gave["emitted_tokens"].sum() + (gave["input_tokens"] - gave["cached_tokens"]).sum()
    assert least == steps["vllm:iteration_tokens_total_sum"] <= most
    assert scrape.total("num_requests_running") == scrape.total("num_requests_waiting") == 0


def test_an_export_of_the_run_ends_with_what_the_server_said(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    words = ["--engine-profile", "vllm-0.33", "--num-gpu-blocks-override", "120"]
    options = {"engine_profile": "vllm-0.33", "num_gpu_blocks_override": 120}
    with ExitStack() as stack:
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json", **options)
        scrape, _, _ = served(session, 40, 400, 150)
        session.run().to_openmetrics(tmp_path / "metrics.txt")
    last: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    text = (tmp_path / "metrics.txt").read_text(encoding="utf-8")
    for family in parser.text_string_to_metric_families(text):
        for one in family.samples:
            last[one.name, frozenset(one.labels.items())] = one.value
    compared: dict[str, int] = {}
    samples = [one for family in scrape.families.values() for one in family.samples]
    for one in samples:
        key = (one.name, frozenset(one.labels.items()))
        if key not in last or one.name.startswith(("vllm:prefix_cache", "vllm:request_params_n")):
            continue
        if one.name.startswith("vllm:request_max_num"):
            continue  # a trace does not say which answers are those to one prompt
        compared[one.name] = compared.get(one.name, 0) + 1
        assert last[key] == pytest.approx(one.value, rel=1e-9), key
    assert len(compared) > 40 and compared["vllm:inter_token_latency_seconds_bucket"] == 20
    assert compared["vllm:prompt_tokens_cached_total"] == 1


def test_first_tokens_and_gaps_are_those_that_clients_see(tmp_path: Path) -> None:
    with ExitStack() as stack:
        session = Session(tmp_path, stack, cluster="h100_llama31_8b.json")

        async def act() -> None:
            for n, prompt in enumerate(prompts(5, 20, 300)):
                await session.ask(9_000_000 * n + 1, prompt, 1 + n % 7)
            await session.wait()

        asyncio.run(act())
        scrape, requests = session.scrape(), session.requests()
    scrape.histogram("time_to_first_token_seconds", (requests["ttft_ps"].astype(float)) / 1e12)
    gaps = [gap / 1e12 for gaps in requests["itl_ps"] for gap in gaps]
    scrape.histogram("inter_token_latency_seconds", gaps)
    assert len(gaps) > 20


def test_drafts_are_counted_by_position(tmp_path: Path) -> None:
    words = ["--engine-profile", "vllm-0.33", "--speculative-config", json.dumps(DRAFTS)]
    options = {"engine_profile": "vllm-0.33", "speculative_config": DRAFTS}
    with ExitStack() as stack:
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json", **options)
        scrape, finished, requests = served(session, 30, 300, 60)
    check_requests(scrape, finished)
    gaps = [gap / 1e12 for gaps in requests["itl_ps"] for gap in gaps if gap > 0]
    scrape.histogram("inter_token_latency_seconds", gaps)
    accepted = scrape.total("spec_decode_num_accepted_tokens")
    assert scrape.total("spec_decode_num_draft_tokens") == requests["verified_tokens"].sum()
    assert accepted == requests["accepted_tokens"].sum() > 0
    by_position = scrape.values("spec_decode_num_accepted_tokens_per_pos")
    assert len(by_position) == 3 and sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    committed = requests["committed_tokens"].sum() - accepted
    assert scrape.total("spec_decode_num_drafts") >= committed > 0


@pytest.mark.parametrize(
    ("words", "options", "source"),
    [
        (["--kv-offloading-size", "4"], {"kv_offloading_size": 4}, "host"),
        (["--prefix-storage", "CPU"], {"prefix_storage": "CPU"}, "host"),
    ],
)
def test_kv_behind_the_prefix_cache_is_counted(
    words: list[str], options: dict[str, Any], source: str, tmp_path: Path
) -> None:
    words = ["--engine-profile", "vllm-0.33", "--num-gpu-blocks-override", "100", *words]
    options = {"engine_profile": "vllm-0.33", "num_gpu_blocks_override": 100, **options}
    with ExitStack() as stack:
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json", **options)

        async def act() -> None:
            given = prompts(8, 12, 900)
            for n, prompt in enumerate([*given, *given, *given]):
                await session.ask(400_000_000 * n + 1, prompt, 8)
            await session.wait()

        asyncio.run(act())
        scrape, requests = session.scrape(), session.requests()
    check_requests(scrape, requests)
    check_sources(scrape, requests)
    hits = scrape.total("external_prefix_cache_hits")
    assert 0 < hits <= scrape.total("external_prefix_cache_queries")
    assert scrape.total("prompt_tokens_by_source", source="external_kv_transfer") == hits
    assert scrape.total("prompt_tokens_cached_by_source", source=source) == hits


def test_engines_of_a_pair_are_told_apart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        session = Session(tmp_path, stack, cluster="h100_llama31_8b_pd.json")
        scrape, finished, requests = served(session, 30, 500, 40, 30_000_000)
    check_requests(scrape, finished)
    decoding = str(int(finished["group"].iloc[0]))
    family = scrape.families["vllm:request_prompt_tokens"]
    counted = [
        one.value
        for one in family.samples
        if one.name.endswith("_count") and one.labels["engine"] == decoding
    ]
    assert counted == [len(finished)]
    came = scrape.total("prompt_tokens_cached_by_source", source="p2p", engine=decoding)
    assert came == scrape.total("external_prefix_cache_hits", engine=decoding) > 0
    assert scrape.total("prompt_tokens") == requests["input_tokens"].sum()


def test_a_full_server_counts_those_it_turns_away(tmp_path: Path) -> None:
    from llmsim.endpoint.protocol import ApiError

    with ExitStack() as stack:
        session = Session(tmp_path, stack, cluster="h100_llama31_8b.json", rows=2)

        async def act() -> None:
            for number in range(2):
                (stream,) = await session.ask(1000 + number, [1] * 20, 4)
                assert stream.status == Status.RUNNING
            with pytest.raises(ApiError, match="too many requests"):
                await session.ask(2000, [1] * 20, 4)
            scrape = session.scrape()
            assert scrape.total("admission_rejections", reason="max_num_queued_reqs") == 1
            waits = scrape.total("num_requests_waiting_by_reason")
            assert waits == scrape.total("num_requests_waiting")
            await session.wait()

        asyncio.run(act())


def test_requests_that_wait_for_an_adapter_are_deferred(tmp_path: Path) -> None:
    from llmsim.endpoint.http.calls import Adapter

    with ExitStack() as stack:
        words = ["--engine-profile", "vllm-0.33", "--max-loras", "1"]
        session = Session(tmp_path, stack, *words, cluster="h100_llama31_8b.json")

        async def act() -> None:
            name = session.endpoint.models[0].name
            for number in (1, 2):
                adapter = Adapter(str(number), number, "")
                session.clock.time_ps = number * 1_000_000
                stream = Stream([number] * 20, [1] * 30, 0, name, adapter=adapter)
                session.endpoint.engine.submit(stream)
            session.clock.time_ps = 20 * 10**9
            session.endpoint.engine.go_on()
            await asyncio.sleep(0.001)
            scrape = session.scrape()
            assert scrape.total("num_requests_running") == 1
            assert scrape.total("num_requests_waiting_by_reason", reason="deferred") == 1
            assert scrape.total("num_requests_waiting_by_reason", reason="capacity") == 0
            await session.wait()

        asyncio.run(act())
