"""Measures `llmsim search` on 256 GPUs: CPU time, the front of successive halving, and kill -9.

usage: python evaluation/search_scale.py [--file FILE] [--points 10000] [--brute 500] [--kills 50]
                                         [--architecture colocated,pd] [--jobs 0] [--output DIR]

`--points N` runs N drawn points of the study and prints the CPU seconds. `--brute N` compares the
front of halving with that of running N points with all requests. `--kills N` kills a search of
`--brute` (or 500) points with signal 9 at N random moments, starts it again each time, and compares
the result with that of an undisturbed search. 0 leaves a part out. Attention and FFN apart take
five to six times as long as other points, so that they are left out unless `--architecture` names
them.
"""

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from llmsim.cli.arguments import OneSentenceParser

STUDY = Path(__file__).resolve().parent / "studies" / "frontier_256.yaml"
LONGEST_S = 15.0
"""A search is killed at most so long after it was started."""


def command(file: Path, output: Path, points: int, jobs: int) -> list[str]:
    """The command line of a search."""
    words = ["search", str(file), "--trials", str(points), "--jobs", str(jobs)]
    return [sys.executable, "-m", "llmsim", *words, "--output", str(output)]


def searched(file: Path, output: Path, points: int, jobs: int) -> tuple[str, dict[str, Any]]:
    """What a whole search prints, and its result without the file's name."""
    done = subprocess.run(
        command(file, output, points, jobs), stdout=subprocess.PIPE, text=True, check=True
    )
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    return done.stdout, {**result, "space": ""}


def changed(file: Path, path: Path, **fields: Any) -> Path:
    """A copy of a search file with other fields; the order of `vary` decides the draws."""
    document = yaml.safe_load(file.read_text(encoding="utf-8")) | fields
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def whole(file: Path, folder: Path) -> Path:
    """The study with one rung and without bounds: every point runs all requests."""
    requests = yaml.safe_load(file.read_text(encoding="utf-8"))["halving"]["requests"]
    return changed(
        file, folder / "whole.yaml", halving={"requests": requests[-1:], "bounds": False}
    )


def front(result: dict[str, Any], architecture: str) -> list[Any]:
    """The points that no other of an architecture beats, with their figures."""
    trials = [result["trials"][i] for i in result["fronts"].get(architecture, [])]
    return [[one["point"], one["values"]] for one in trials]


def compared(file: Path, output: Path, points: int, jobs: int) -> str:
    """Whether halving finds the front of running every point whole."""
    _, halved = searched(file, output / "halved", points, jobs)
    _, brute = searched(whole(file, output), output / "whole", points, jobs)
    kept, every = ({json.dumps(one["point"]) for one in r["trials"]} for r in (halved, brute))
    assert kept <= every, "both searches draw the same points"
    lines = [f"{points} points with all requests against successive halving ({len(kept)} of them):"]
    for architecture in brute["fronts"]:
        fronts = front(brute, architecture), front(halved, architecture)
        same = "equal" if fronts[0] == fronts[1] else "different"
        lines.append(f"  {architecture}: {len(fronts[0])} points, {same}")
    return "\n".join(lines)


def killed(file: Path, output: Path, points: int, jobs: int, kills: int) -> str:
    """Kills a search again and again, and compares its result with an undisturbed one."""
    draw, journal = random.Random(7), output / "killed" / "trials.jsonl"
    shutil.rmtree(output / "killed", ignore_errors=True)
    known, lost, ended = 0, 0, 0
    for _ in range(kills):
        process = subprocess.Popen(
            command(file, output / "killed", points, jobs),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(draw.uniform(0.0, LONGEST_S))
        ended += process.poll() is not None
        process.kill()
        process.wait()
        lines = answers(journal)
        lost += lines < known
        known = lines
    _, result = searched(file, output / "killed", points, jobs)
    _, undisturbed = searched(file, output / "halved", points, jobs)
    same = "equal to" if result == undisturbed else "different from"
    return (
        f"{kills} kills ({ended} after the search had ended), {known} answers in the journal at "
        f"the last one, answers lost in {lost}; the result is {same} the undisturbed one"
    )


def answers(journal: Path) -> int:
    """Whole answers in a journal."""
    if not journal.exists():
        return 0
    lines = journal.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return sum('"line": "answer"' in line for line in lines)


def cpu_s() -> float:
    """CPU seconds of this process and those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usages)


def main() -> None:
    """Runs what was asked for."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=STUDY, help="the search file")
    parser.add_argument("--architecture", default="colocated,pd", help="those of the study to try")
    parser.add_argument("--points", type=int, default=10_000, help="points of the study")
    parser.add_argument("--brute", type=int, default=500, help="points of the comparison")
    parser.add_argument("--kills", type=int, default=50, help="kills of a search")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per processor")
    parser.add_argument("--output", type=Path, default=Path("outputs/search_scale"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    architecture = given.architecture.split(",")
    file = changed(given.file, given.output / "study.yaml", architecture=architecture)
    if given.points:
        shown, _ = searched(file, given.output / "points", given.points, given.jobs)
        print(f"{shown}{cpu_s():.0f} CPU s", flush=True)
    if given.brute:
        print(compared(file, given.output, given.brute, given.jobs), flush=True)
    if given.kills:
        points = given.brute or 500
        print(killed(file, given.output, points, given.jobs, given.kills), flush=True)


if __name__ == "__main__":
    main()
