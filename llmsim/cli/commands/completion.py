"""`llmsim completion`: the shell's Tab key knows verbs, options and their values."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from llmsim.config.errors import InputError, nearest

HELP = (
    "Print a script with which a shell completes verbs, options and values: bash, zsh or fish. "
    'Evaluate it at the start of a shell, such as eval "$(llmsim completion bash)".'
)
WORDS = "words"
"""What the scripts ask for: the words that may stand in place of the last one."""
SCRIPTS = {
    "bash": """_llmsim() {
  local IFS=$'\\n' last="${COMP_WORDS[COMP_CWORD]}"
  COMPREPLY=($(llmsim completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$last"))
}
complete -o filenames -F _llmsim llmsim
""",
    "zsh": """#compdef llmsim
_llmsim() {
  local found
  found=("${(@f)$(llmsim completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -- $found; else _files; fi
}
compdef _llmsim llmsim
""",
    "fish": (
        "complete -c llmsim -a "
        "'(llmsim completion words -- (commandline -opc)[2..] (commandline -ct))'\n"
    ),
}


def command(
    shell: Annotated[
        str, typer.Argument(help="Names the shell: bash, zsh or fish.", show_default=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Holds the words of a command line, for the scripts.", hidden=True),
    ] = None,
) -> int:
    """Prints the script, or the words for it; raises InputError for another shell."""
    if shell == WORDS:
        sys.stdout.write("".join(f"{word}\n" for word in candidates(words or [""])))
        return 0
    if shell not in SCRIPTS:
        raise InputError(
            f'"{shell}" is not a shell that llmsim knows{nearest(shell, SCRIPTS)}; there are '
            f"{', '.join(SCRIPTS)}"
        )
    sys.stdout.write(SCRIPTS[shell])
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Verbs, options or values that may stand in place of the last word; none for paths."""
    from llmsim.cli.app import app

    found: Any = typer.main.get_command(app)
    *before, last = words
    for word in before:
        found = getattr(found, "commands", {}).get(word, found)
    verbs = getattr(found, "commands", {})
    if verbs and not last.startswith("-"):
        return _beginning(verbs, last)
    if before and before[-1].startswith("-") and not last.startswith("-"):
        return _beginning(_values(before[-1]), last)
    if not last.startswith("-"):
        return []
    names = [name for one in found.params for name in (*one.opts, *one.secondary_opts)]
    return _beginning([name for name in names if name.startswith("--")], last)


def _beginning(words: Iterable[str], last: str) -> list[str]:
    return sorted(word for word in words if word.startswith(last))


def _values(option: str) -> Sequence[str]:
    """What an option may be, where that is a short list."""
    if option in VALUES:
        return VALUES[option]()
    return _literals(option)


def _literals(option: str) -> Sequence[str]:
    """The values of an engine option that has only some."""
    from llmsim.config.engine.options import EngineOptions

    field = EngineOptions.model_fields.get(option.removeprefix("--").replace("-", "_"))
    if field is None:
        return ()
    return list(_literals_in(field.annotation))


def _literals_in(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
        return
    for inner in get_args(annotation):
        yield from _literals_in(inner)


def _schedulers() -> Sequence[str]:
    from llmsim.config.engine.schedulers import SCHEDULERS

    return list(SCHEDULERS)


def _routers() -> Sequence[str]:
    from llmsim.routing.spec import native_names

    return native_names()


def _formats() -> Sequence[str]:
    from llmsim.export.benchmark_formats.formats import FORMATS

    return list(FORMATS)


def _metrics() -> Sequence[str]:
    from llmsim.api.why.seen import METRICS

    return list(METRICS)


def _cost_sources() -> Sequence[str]:
    from llmsim.api.checked.run_options import COST_SOURCES

    return COST_SOURCES


def _collectives() -> Sequence[str]:
    from llmsim.api.checked.run_options import COLLECTIVES

    return COLLECTIVES


VALUES: dict[str, Callable[[], Sequence[str]]] = {
    "--scheduler": _schedulers,
    "--request-routing-policy": _routers,
    "--decode-routing-policy": _routers,
    "--format": _formats,
    "--metric": _metrics,
    "--cost-source": _cost_sources,
    "--collective-costs": _collectives,
}
