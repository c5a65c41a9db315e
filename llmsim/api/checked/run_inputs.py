"""What a run was given, so that it can be run again: from a result or from a run folder."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from llmsim.api.checked.given import Given
from llmsim.api.cluster import Cluster
from llmsim.config.errors import InputError
from llmsim.config.files import input_files

if TYPE_CHECKING:
    from llmsim.api.result import Result

NOT_OPTIONS = (
    "cluster_config",
    "dataset",
    "engine_options",
    "output",
    "run_dir",
    "timeline",
    "graphs",
    "as_json",
    "input_files",
    "enable_block_copy",
    "log_level",
    "quiet",
    "verbose",
)
"""Fields of `Given` that are inputs of their own, say what is written, or are not read."""


def options_asked(given: Given) -> dict[str, Any]:
    """The options that differ from their defaults, as `llmsim.run` and JSON take them."""
    changed = {
        name: getattr(given, name)
        for name, default in given.defaults().items()
        if name not in NOT_OPTIONS and getattr(given, name) != default
    }
    return {name: _plain(value) for name, value in {**changed, **given.engine_options}.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


class Recorded(Struct, frozen=True):
    """The tables that a run records."""

    steps: bool
    series: bool


class RunInputs(Struct, frozen=True):
    """A cluster, a workload and options: everything that `llmsim.run` takes."""

    cluster: Cluster
    workload: Any
    options: Mapping[str, Any]
    directory: Path | None = None
    """The working directory of the run, where relative paths start; None: the current one."""

    @classmethod
    def of_folder(cls, folder: str | Path) -> "RunInputs":
        """What the run of a run folder was given.

        Raises InputError where the folder is none, or its run cannot be run again.
        """
        from llmsim.export.benchmark_formats.tables import read_manifest

        path = Path(folder) / "manifest.json"
        manifest = read_manifest(Path(folder))
        asked = manifest.get("run")
        if not isinstance(asked, dict) or not isinstance(asked.get("cluster"), dict):
            raise InputError(
                f"{path} does not say what the run was given, as an older llmsim wrote it; write "
                "the folder again with `llmsim run --run-dir`",
                file=str(path),
            )
        cluster = Cluster(str(asked["cluster"]["text"]), str(asked["cluster"]["name"]))
        directory = Path(str(manifest.get("host", {}).get("directory", ".")))
        workload = asked.get("dataset")
        return cls(
            cluster,
            _requests_of(Path(folder)) if workload is None else workload,
            dict(asked.get("options", {})),
            directory if directory.is_dir() else None,
        )

    def changed(self, **parts: Any) -> "RunInputs":
        """With another `cluster`, `workload` or `options`."""
        return replace(self, **parts)

    @contextlib.contextmanager
    def in_directory(self) -> Iterator[None]:
        """Relative paths start where they did; for programs of one thread."""
        here = Path.cwd()
        with contextlib.chdir(self.directory or here):
            yield

    def run(self, *, steps: bool = True, series: bool = True) -> "Result":
        """Runs it; raises what `llmsim.run` raises."""
        from llmsim.api.run import run

        return run(self.cluster, self.workload, steps=steps, series=series, **self.options)


def _requests_of(folder: Path) -> Any:
    """The workload of a run whose requests came as objects: the requests that the run recorded."""
    import pyarrow as pa

    path = folder / "requests.parquet"
    names = ["arrival_ps", "input_tokens", "output_tokens", "model", "request_id", "session_id"]
    try:
        content = pa.BufferReader(input_files.read_bytes(path))
        table = input_files.parquet_table(content, names)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); write the run folder again", file=str(path)
        ) from None
    if table.column("session_id").null_count < len(table):
        raise InputError(
            f"{path}: the sessions of this run came as objects, which no file holds; call "
            "Result.why() in the program that ran it",
            file=str(path),
        )
    return table.drop_columns(["session_id"])
