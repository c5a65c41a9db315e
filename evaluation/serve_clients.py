"""What load generators report of `llmsim serve`, against the simulated times of the same requests.

    python evaluation/serve_clients.py --vllm ENGINE/bin/python --openai OPENAI/bin/python \
        --guidellm GUIDELLM/bin/guidellm --aiperf AIPERF/bin/aiperf

Each client asks a server of its own, at the real clock, for 100 answers of 100 tokens, five a
second. A row is printed for each: median and 99th percentile (of the size), in ms, of how much more
the client has measured than the run folder of the server says, request by request in the order of
their starts.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from llmsim.cli.arguments import OneSentenceParser

CLUSTER = "cluster_config/h100_llama31_8b.json"
REQUESTS, RATE, PROMPT, ANSWER = 100, 5, 128, 100
LONGEST_S = 300
MODEL = "meta-llama/Llama-3.1-8B"
OPENAI = """
import asyncio, json, sys, time
from openai import AsyncOpenAI
url, model, out, count, rate, answer = sys.argv[1:]
async def one(client, number):
    await asyncio.sleep(number / float(rate))
    began = time.perf_counter()
    stream = await client.completions.create(
        model=model, prompt="t1 " * 128, max_tokens=int(answer), stream=True)
    times = [time.perf_counter() - began async for chunk in stream if chunk.choices]
    return [began, times[0], times[-1]]
async def main():
    client = AsyncOpenAI(base_url=url + "/v1", api_key="none")
    await client.models.list()
    found = await asyncio.gather(*(one(client, n) for n in range(int(count))))
    json.dump(found, open(out, "w"))
asyncio.run(main())
"""

Measured = list[tuple[float, float, float]]
"""(start, TTFT, latency) of each request, in s."""


@dataclass(frozen=True)
class Client:
    """How a client is called, with `{url}` and `{out}`, and what it has measured."""

    words: list[str]
    measured: Callable[[Path], Measured]


def of_vllm(out: Path) -> Measured:
    """The file of --save-detailed."""
    found = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    rows = zip(found["start_times"], found["ttfts"], found["itls"], strict=True)
    return [(start, ttft, ttft + sum(itls)) for start, ttft, itls in rows]


def of_openai(out: Path) -> Measured:
    """What the few lines above have written."""
    return [tuple(one) for one in json.loads((out / "openai.json").read_text(encoding="utf-8"))]


def of_guidellm(out: Path) -> Measured:
    """The requests of its report."""
    report = json.loads((out / "guidellm.json").read_text(encoding="utf-8"))
    rows = report["benchmarks"][0]["requests"]["successful"]
    return [
        (
            one["request_start_time"],
            one["time_to_first_token_ms"] / 1e3,
            one["request_latency"],
        )
        for one in rows
    ]


def of_aiperf(out: Path) -> Measured:
    """The records of profile_export.jsonl."""
    path = next(out.rglob("profile_export.jsonl"))
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        metrics = one["metrics"]
        found.append(
            (
                one["metadata"]["request_start_ns"] / 1e9,
                metrics["time_to_first_token"]["value"] / 1e3,
                metrics["request_latency"]["value"] / 1e3,
            )
        )
    return found


def clients(given: argparse.Namespace, model: Path) -> dict[str, Client]:
    """Those that were named."""
    found = {}
    if given.vllm:
        found["vllm bench serve"] = Client(
            shlex.split(
                f"{given.vllm} -m vllm.entrypoints.cli.main bench serve --base-url {{url}} "
                f"--model {MODEL} --tokenizer {model} --dataset-name random "
                f"--random-input-len {PROMPT} --random-output-len {ANSWER} "
                f"--num-prompts {REQUESTS} --request-rate {RATE} --ignore-eos --disable-tqdm "
                "--save-result --save-detailed --result-dir {out} --result-filename bench.json"
            ),
            of_vllm,
        )
    if given.openai:
        found["openai"] = Client(
            [
                *(given.openai, "-c", OPENAI, "{url}", MODEL, "{out}/openai.json"),
                *(str(REQUESTS), str(RATE), str(ANSWER)),
            ],
            of_openai,
        )
    if given.guidellm:
        found["GuideLLM"] = Client(
            shlex.split(
                f"{given.guidellm} run --backend kind=openai_http,target={{url}},model={MODEL} "
                f"--profile kind=constant,rate={RATE} "
                f"--constraint kind=max_requests,count={REQUESTS} "
                f"--tokenizer kind=hf_auto,model={model} "
                f"--data kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER} "
                "--output kind=json,path={out}/guidellm.json --disable-console-interactive"
            ),
            of_guidellm,
        )
    if given.aiperf:
        found["aiperf"] = Client(
            shlex.split(
                f"{given.aiperf} profile --model {MODEL} --url {{url}} --endpoint-type completions "
                f"--streaming --tokenizer {model} --request-count {REQUESTS} "
                f"--request-rate {RATE} --synthetic-input-tokens-mean {PROMPT} "
                f"--output-tokens-mean {ANSWER} --extra-inputs ignore_eos:true "
                "--output-artifact-dir {out} --ui none"
            ),
            of_aiperf,
        )
    return found


def served(client: Client, folder: Path, tokenizer: Path) -> tuple[Measured, pd.DataFrame, float]:
    """(what the client says, the run folder's requests, tokens/s)."""
    words = [sys.executable, "-m", "llmsim", "serve", "--cluster-config", CLUSTER, "--port", "0"]
    words += ["--tokenizer", str(tokenizer), "--run-dir", str(folder / "run")]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().split()[1]
    out = folder / "out"
    out.mkdir()
    command = [word.replace("{url}", url).replace("{out}", str(out)) for word in client.words]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST_S
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]}: {done.stdout[-3000:]}")
    requests = pd.read_parquet(folder / "run" / "requests.parquet")
    requests = requests[requests.output_tokens == ANSWER].sort_values("arrival_ps")
    measured = sorted(client.measured(out))
    took_s = (requests.finish_ps.max() - requests.arrival_ps.min()) / 1e12
    # Clients that ask for something first have more requests than they report.
    requests = requests.tail(len(measured))
    return measured, requests, len(requests) * ANSWER / took_s


def row_of(name: str, measured: Measured, requests: pd.DataFrame, rate: float) -> str:
    """A row of the table: differences in ms."""
    said = np.array(measured)
    cells = [name, str(len(said)), f"{rate:.0f}"]
    ttft_s, latency_s = (one.to_numpy() / 1e12 for one in (requests.ttft_ps, requests.e2el_ps))
    for client_s, simulated_s in (
        (said[:, 1], ttft_s),
        (said[:, 2], latency_s),
        (said[:, 2] - said[:, 1], latency_s - ttft_s),
    ):
        differs_ms = (client_s - simulated_s) * 1e3
        size_ms = np.abs(differs_ms)
        cells.append(f"{np.median(differs_ms):.2f} / {np.percentile(size_ms, 99):.2f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = OneSentenceParser(description=__doc__.splitlines()[0])
    for name in ("vllm", "openai", "guidellm", "aiperf"):
        parser.add_argument(f"--{name}", metavar="PROGRAM")
    given = parser.parse_args()
    print("| client | requests | tokens/s | TTFT | latency | first to last token |\n"
          "| --- | --- | --- | --- | --- | --- |")  # fmt: skip
    from llmsim.emulation.words import write_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        write_tokenizer(model)
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for number, (name, client) in enumerate(clients(given, model).items()):
            place = Path(folder) / str(number)
            place.mkdir()
            print(row_of(name, *served(client, place, model / "tokenizer.json")), flush=True)


if __name__ == "__main__":
    main()
