"""What is left of an emulation when one of its processes is killed: `kill -9` of each in turn.

    python evaluation/emulation_kills.py --engine-python ENGINE/bin/python
    python evaluation/emulation_kills.py --engine sglang --engine-python ENGINE/bin/python

prints a row for each: the exit code and the sentence of `llmsim emulate`, how long it took to end,
how many requests have their answers, whether these are those of an undisturbed emulation, and how
many of its processes were left.
"""

import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from llmsim.emulation.processes import descendants

CLUSTER = "cluster_config/h100_llama31_8b.json"
LLMSIM = (sys.executable, "-m", "llmsim", "emulate")
BENCH = shlex.split(
    "vllm bench serve --base-url {base_url} --model {model} --tokenizer {tokenizer} "
    "--dataset-name random --random-input-len 128 --random-output-len 32 --num-prompts 200 "
    "--request-rate 10 --ignore-eos --disable-tqdm --seed 1"
)
KILL_AT_S = 8.0
"""Virtual time of the kill."""
LONGEST_S = 300
ACTORS = {
    "vllm": {
        "API server": " serve ",
        "engine core": "EngineCore",
        "client": " bench serve ",
        "Timekeeper": "",
    },
    "sglang": {
        "API server": "sglang.launch_server",
        "engine core": "sglang::schedul",
        "detokenizer": "sglang::detoken",
        "Timekeeper": "",
    },
}
"""By engine: what the command line of each process has in it."""
WORKLOAD = {
    "vllm": ["--", *BENCH],
    "sglang": ["--dataset", "synthetic:n=200,rate=10,input=fixed:128,output=fixed:32,seed=1"],
}
"""SGLang has the clients of `llmsim emulate`."""


def started(engine: str, python: Path, folder: Path) -> "subprocess.Popen[str]":
    """An emulation; its temporary files are in the folder."""
    folder.mkdir()
    words = [*LLMSIM, engine, "--engine-python", str(python), "--cluster-config", CLUSTER]
    words += ["--run-dir", str(folder / "run"), *WORKLOAD[engine]]
    return subprocess.Popen(
        words,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_virtual_time(process: "subprocess.Popen[str]", folder: Path) -> None:
    """Returns at `KILL_AT_S` of the emulation's clock."""
    while process.poll() is None:
        for page in folder.glob("llmsim-*/clock"):
            if struct.unpack("<q", page.read_bytes()[:8])[0] > KILL_AT_S * 1e12:
                return
        time.sleep(0.005)
    raise SystemExit(f"the emulation ended early: {process.communicate()[0][-500:]}")


def victim(process: "subprocess.Popen[str]", engine: str, actor: str) -> int:
    """The process that plays that part."""
    if actor == "Timekeeper":
        return process.pid
    for pid in descendants(process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if ACTORS[engine][actor] in words and (actor == "client" or " bench " not in words):
            return pid
    raise SystemExit(f"no {actor} was found")


def answers(folder: Path) -> dict[float, float]:
    """Of requests that have their answers: start -> TTFT, in s."""
    path = folder / "run" / "client.json"
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return dict(zip(found["start_times"], found["ttfts"], strict=True))


def killed(
    engine: str, python: Path, folder: Path, actor: str, right: dict[float, float]
) -> list[str]:
    """A row of the table."""
    process = started(engine, python, folder)
    wait_for_virtual_time(process, folder)
    family = [process.pid, *descendants(process.pid)]
    os.kill(victim(process, engine, actor), signal.SIGKILL)
    began_s = time.monotonic()
    said, _ = process.communicate(timeout=LONGEST_S)
    while time.monotonic() - began_s < 30 and any(map(is_running, family)):
        time.sleep(0.1)
    took_s = time.monotonic() - began_s
    left = sum(map(is_running, family))
    found = answers(folder)
    same = all(right.get(start) == ttft for start, ttft in found.items())
    errors = [line for line in said.splitlines() if line.startswith("llmsim: error: ")]
    sentence = errors[-1].removeprefix("llmsim: error: ") if errors else ""
    equal = ("yes" if same else "no") if found else ""
    return [actor, str(process.returncode), f"{took_s:.1f}", str(len(found)), equal, str(left),
            sentence]  # fmt: skip


def is_running(pid: int) -> bool:
    """Whether it is there, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1][1] != "Z"
    except OSError:
        return False


def main() -> None:
    """Prints the table."""
    parser = OneSentenceParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="vllm", choices=ACTORS)
    parser.add_argument("--engine-python", type=Path, required=True)
    parser.add_argument("--actors", nargs="*", default=[])
    given = parser.parse_args()
    engine, python = given.engine, given.engine_python
    unknown = set(given.actors) - set(ACTORS[engine])
    if unknown:
        parser.error(f"--actors: {min(unknown)} is none of {', '.join(ACTORS[engine])}")
    with tempfile.TemporaryDirectory() as folder:
        whole = started(engine, python, Path(folder) / "whole")
        said, _ = whole.communicate(timeout=LONGEST_S)
        if whole.returncode != 0:
            raise SystemExit(said[-2000:])
        right = answers(Path(folder) / "whole")
        print("| killed | exit | s until all had ended | answers | same | left | sentence |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for actor in given.actors or ACTORS[engine]:
            row = killed(engine, python, Path(folder) / actor.replace(" ", "_"), actor, right)
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
