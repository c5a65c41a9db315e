"""`llmsim run --input-files`: which files a run read, and whether the same input would end the same
way again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from llmsim.config.errors import InfeasibleError, InputError, PluginRefused, may_pass
from llmsim.config.files.input_files import InputFiles

SCHEMA_VERSION = 1


@contextmanager
def inputs_reported(path: Path | None, files: InputFiles) -> Iterator[None]:
    """Writes the report when the block ends, also by an error; nothing without a path."""
    if path is None:
        yield
        return
    from llmsim.export.files import check_writable

    check_writable(path)
    path.unlink(missing_ok=True)
    ended = "answered"
    try:
        yield
    except BaseException as error:
        ended = how_it_ended(error)
        raise
    finally:
        _write(path, ended, files)


def how_it_ended(error: BaseException) -> str:
    """ "plugin_refused", "bad_input" and "does_not_fit" are the input's fault; "failed" may go well
    another time.
    """
    if isinstance(error, PluginRefused):
        return "plugin_refused"
    if may_pass(error):
        return "failed"
    if isinstance(error, InputError):
        return "bad_input"
    return "does_not_fit" if isinstance(error, InfeasibleError) else "failed"


def _write(path: Path, ended: str, files: InputFiles) -> None:
    from llmsim.config.files.code_identity import code_hash
    from llmsim.export.json import write_json

    report = {
        "schema_version": SCHEMA_VERSION,
        "ended": ended,
        "code_sha256": code_hash(),
        "files": [asdict(one) for one in files.listed()],
    }
    write_json(report, path)
