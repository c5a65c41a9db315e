"""The command `astra-sim` lies beside `llmsim` in the environment, and has its version."""

import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

from processes import HANGS_S


def test_the_command_is_installed_beside_llmsim() -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    assert (scripts / "llmsim").exists(), "llmsim is not installed in this environment"
    done = subprocess.run(
        [scripts / "astra-sim", "--version"],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"astra-sim {version('llmsim')}\n"
