"""Errors about options in the words of the Python API: `max_num_seqs`, not `--max-num-seqs`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from os import PathLike
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from llmsim.config.engine.args import COMMAND_LINE
from llmsim.config.errors import InfeasibleError, InputError

_DASHED = re.compile(r"`[^`]*`|--(?P<off>no-)?(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
"""A command line in backticks, which stays as it is, or an option as the command line has it."""
_WORD = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")


@contextmanager
def in_python_words(given: Mapping[str, Any]) -> Iterator[None]:
    """Errors within name options as Python does, and carry the option of `given` that they are
    about as `field`, with its `value`, where they carry none.
    """
    try:
        yield
    except InputError as error:
        sentence = _reworded(str(error), given)
        error.args = (sentence,)
        if error.field is not None:
            error.field = _reworded(error.field, given)
        elif (name := _first_named(sentence, given)) is not None:
            error.field = name
            error.value = given[name] if error.value is None else error.value
        raise
    except InfeasibleError as error:
        error.args = (_reworded(str(error), given),)
        raise


def _reworded(sentence: str, given: Mapping[str, Any]) -> str:
    def word(found: re.Match[str]) -> str:
        dashed = found["name"]
        name = None if dashed is None else _names().get(dashed)
        if name is None and dashed is not None and dashed.replace("-", "_") in given:
            name = dashed.replace("-", "_")
        if name is None:
            return found[0]
        return f"{name}=False" if found["off"] else name

    return _DASHED.sub(word, sentence).replace(f"({COMMAND_LINE})", "(option)")


def _first_named(sentence: str, given: Mapping[str, Any]) -> str | None:
    """The option of `given` that the sentence names first, else the one whose text it shows.

    An option of one word counts only where the sentence begins with it, since it may be a word like
    others elsewhere.
    """
    begun = re.match(r"[a-z0-9]+(?=[ :])", sentence)
    if begun and begun[0] in given:
        return begun[0]
    words: list[str] = _WORD.findall(sentence)
    named = next((word for word in words if word in given), None)
    if named is not None:
        return named
    texts = {name: str(one) for name, one in given.items() if isinstance(one, str | PathLike)}
    return next((name for name, text in texts.items() if text and text in sentence), None)


@cache
def _names() -> Mapping[str, str]:
    """Options of the command line, without their dashes, and their names in Python."""
    from llmsim.api.checked.given import Given
    from llmsim.api.options.option import Option
    from llmsim.config.engine.options import command_line_options

    found: dict[str, str] = {}
    for name, kind in get_type_hints(Given, include_extras=True).items():
        declared = get_args(kind)[1] if get_origin(kind) is Annotated else None
        if isinstance(declared, Option):
            found |= {_undashed(one): name for one in declared.names}
    for name, (mark, _) in command_line_options().items():
        found |= {_undashed(one): name for one in mark.declarations(name)}
    return found


def _undashed(declaration: str) -> str:
    """`--name/--no-name` as `name`."""
    return declaration.partition("/")[0].lstrip("-")
