"""The command line: parses options, calls the package, prints results, and turns errors into exit
codes.

Exit codes: 0 ok; 1 an unexpected failure; 2 bad input; 3 does not fit or can never run; 4 an
invariant was violated; 130 interrupted (what was done by then is written).
"""

import contextlib
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """The `llmsim` command; returns the exit code."""
    from llmsim.cli.app import app

    return guarded(lambda: app(_encodable(arguments), standalone_mode=False))


def run_main(arguments: Sequence[str] | None = None) -> int:
    """`main.py`: the `run` verb alone; returns the exit code."""
    from llmsim.cli.app import run_app

    return guarded(lambda: run_app(_encodable(arguments), standalone_mode=False))


def _encodable(arguments: Sequence[str] | None) -> Sequence[str]:
    """The words of the command line; InputError for one that no output could name, as it is not
    UTF-8.
    """
    from llmsim.config.errors import InputError

    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{word!a} on the command line is not UTF-8 text; rename the file, or write the "
                "name anew"
            ) from None
    return words


def guarded(command: Callable[[], object], program: str = "llmsim") -> int:
    """Runs a command of `program`; every error becomes one sentence on stderr and an exit code."""
    gc.set_threshold(
        OBJECTS_BETWEEN_COLLECTIONS
    )  # imports leave no garbage: looking for it is a tenth of a short run
    from llmsim.cli.streams import printable_streams
    from llmsim.export.files import no_empty_folders
    from llmsim.loading import without_pydantic_plugins

    _open_missing_streams()
    with (
        without_pydantic_plugins(),
        printable_streams(),
        warnings.catch_warnings(),
        no_empty_folders(),
    ):
        _tell_warnings_once(program)
        return _guarded(command, program)


def _tell_warnings_once(program: str) -> None:
    """What the package warns of is one sentence on stderr, without a line of a source file."""
    told: set[str] = set()

    def tell(message: Warning | str, *_: object, **_rest: object) -> None:
        if str(message) not in told:
            told.add(str(message))
            print(f"{program}: note: {message}", file=sys.stderr)

    if not sys.warnoptions:
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = cast(Any, tell)


def _guarded(command: Callable[[], object], program: str) -> int:
    import typer

    from llmsim.cli.usage import PARSER_ERROR
    from llmsim.config.errors import LlmsimError

    try:
        code = command()
        sys.stdout.flush()  # what cannot be written is found here and not while Python ends
        if code == INTERRUPTED:  # how typer reports an interrupt that reached it
            raise KeyboardInterrupt
    except LlmsimError as error:
        if os.environ.get("LLMSIM_DEBUG"):
            _print_plugin_error(error)
        return _fail(program, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(program, "interrupted before anything was computed", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
            forget_stdout()  # typer makes an exit of it
            return 0
        return _fail(program, _ended_by_plugin(error), 2)
    except MemoryError:
        return _fail(program, "out of memory; simulate fewer requests, or record fewer tables", 3)
    except OSError as error:
        return _fail(
            program, f"{error.filename or 'standard output'}: {error.strerror or error}", 2
        )
    except Exception as error:
        if isinstance(error, PARSER_ERROR):
            return _usage(program, error)
        if os.environ.get("LLMSIM_DEBUG"):
            raise
        return _fail(
            program,
            f"internal error: {error!r}; this is a defect of llmsim, LLMSIM_DEBUG=1 shows where",
            1,
        )
    return code if isinstance(code, int) else 0


def _print_plugin_error(error: BaseException) -> None:
    """The traceback of a plug-in's exception that led to `error`, if one did."""
    from llmsim.config.errors import LlmsimError
    from llmsim.config.plugin_calls import position_of

    seen: BaseException | None = error
    while seen is not None:
        if not isinstance(seen, LlmsimError) and position_of(seen):
            traceback.print_exception(seen)
            return
        seen = seen.__cause__ or seen.__context__


def _ended_by_plugin(error: SystemExit) -> str:
    from llmsim.config.plugin_calls import position_of

    position = position_of(error)
    where = f" at {position}" if position else ""
    return f"a policy or plug-in ended the program (sys.exit({error.code!r})){where}; let it return"


def _open_missing_streams() -> None:
    """A stream that was closed by the caller (`>&-`) is written to nowhere instead of to another
    one.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # It stays open as long as the process.
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)


def forget_stdout() -> None:
    """The reader has seen enough and gone (`| head`): what else is printed goes nowhere, which is
    no error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _usage(program: str, error: Exception) -> int:
    message = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    return _fail(program, f"{message.rstrip('.')}; --help lists the options", 2)


def _fail(program: str, sentence: str, code: int) -> int:
    from llmsim.config.printing import one_line

    with contextlib.suppress(OSError):  # a full disk: the exit code says it
        print(f"{program}: error: {one_line(sentence)}", file=sys.stderr, flush=True)
    return code
