"""Files and commands of docs/reference/engine and the engine's README, run as printed, end when
the pages say.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import HANGS_S

from engine.command import REPOSITORY

ENGINE_PAGES = REPOSITORY / "docs" / "reference" / "engine"
README = REPOSITORY / "astra-sim" / "README.md"
PAGES = [
    page.read_text(encoding="utf-8")
    for page in (ENGINE_PAGES / "files.md", ENGINE_PAGES / "topology_files.md", README)
]
PAGE = "\n## \n".join(PAGES)
FILES = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
RUNS = re.findall(r"<!-- run -->\n```sh\n(.*?)```(.*?)(?=<!-- run -->|\n## |\Z)", PAGE, re.DOTALL)
NUMBER = r"([\d,]+) ns"
SAID = tuple(
    f"{words} {NUMBER}"
    for words in ("ends after", "one after another:", "All end at", "it ends after")
)


def test_there_are_commands() -> None:
    assert len(RUNS) == len(SAID)


@pytest.mark.parametrize("index", range(len(SAID)))
def test_runs_as_printed(command: Path, tmp_path: Path, index: int) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    script, remark = RUNS[index]
    said = re.search(SAID[index], remark)
    assert said is not None
    path = os.pathsep.join(
        [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ends = re.findall(r"finished, (\d+) cycles", done.stdout)
    assert ends == [said[1].replace(",", "")] * 4
