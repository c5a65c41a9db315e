"""What the parser of a command line refuses, in one sentence: the option, its value, and what would
have worked.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from llmsim.api.options.elsewhere import elsewhere
from llmsim.config.errors import InputError, nearest

# Newer releases of typer carry click inside, older ones import it: these are the bases of its
# errors in both.
PARSER_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)
MOST_WORDS = 20
"""Words of an option's help that an error repeats."""
_KINDS = {"integer": "an integer", "number": "a number", "float": "a number"}


class _NoCompletion:
    """Leaves the parser's variables of shell completion (`_LLMSIM_COMPLETE`) unread: `llmsim
    completion` has scripts of its own.
    """

    def _main_shell_completion(self, *_: Any, **__: Any) -> None:
        return


class Command(_NoCompletion, TyperCommand):
    """A verb whose wrong options are an InputError; `--max_num_seqs` is `--max-num-seqs`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = [self._dashed(word) for word in args]
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            raise InputError(_sentence(error, self, ctx, given)) from None

    def _dashed(self, word: str) -> str:
        """An option of this command that is written with underscores, as vLLM allows, in its own
        spelling.
        """
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        if not name.startswith("--") or "_" not in name:
            return word
        known = {one for parameter in self.params for one in parameter.opts}
        return f"{dashed}{equals}{value}" if name not in known and dashed in known else word


OTHER_VERBS = {
    "bench": "run",
    "benchmark": "run",
    "compare": "diff",
    "explain": "why",
    "plan": "size",
    "simulate": "run",
    "sweep": "search",
}
"""Words for commands that spelling alone would not find, or would take for another."""


class Group(_NoCompletion, TyperGroup):
    """Verbs under one name; an unknown one is an InputError, none at all prints the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if not given:
                raise
            raise InputError(_sentence(error, self, ctx, given)) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except USAGE_ERROR:
            known = self.list_commands(ctx)
            meant = OTHER_VERBS.get(args[0])
            hint = f' (did you mean "{meant}"?)' if meant in known else nearest(args[0], known)
            raise InputError(
                f'"{args[0]}" is not a command of {ctx.command_path}{hint}; '
                f"there are {', '.join(known)}"
            ) from None


def _sentence(error: Any, command: Any, ctx: Any, given: Sequence[str]) -> str:
    """`error` of the parser as a sentence about `given`, the words after the command's name."""
    kind, see = type(error).__name__, f"(see {ctx.command_path} --help)"
    parameters = command.get_params(ctx)
    if kind == "NoSuchOption":
        known = [
            name
            for one in parameters
            for name in (*one.opts, *one.secondary_opts)
            if name.startswith("-")
        ]
        return f"{unknown_option(error.option_name, known, ctx.command_path)} {see}"
    if kind == "BadOptionUsage":
        return f"{_misused(error, parameters, given)} {see}"
    if kind == "MissingParameter":
        stray = _stray(error.param, command, ctx, given)
        return f"{_name(error.param)} is missing{_meaning(error.param)}{stray} {see}"
    if kind == "BadParameter" and error.param is not None:
        return f"{_refused(error, command, ctx, given)} {see}"
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)$", error.message)
    if extra is None:
        return f"{error.format_message().rstrip('.')} {see}"
    taken = " ".join(_name(one) for one in parameters if one.param_type_name == "argument")
    return (
        f'"{extra[1]}" is too much: {ctx.command_path} takes '
        f"{taken or 'no arguments, only options'} {see}"
    )


def _stray(missing: Any, command: Any, ctx: Any, given: Sequence[str]) -> str:
    """What to do with the first word that no option has, where an option is missing."""
    if missing.param_type_name != "option":
        return ""
    _, words, _ = command.make_parser(ctx).parse_args(args=list(given))
    first = next(iter(words), None)
    if first is None:
        return ""
    return f'; "{first}" has no option before it, so write {_name(missing)} {first}'


def unknown_option(wrong: str, known: Sequence[str], command: str) -> str:
    """An option that the command does not have, and where what it means is to be given."""
    names = [name.lstrip("-").replace("-", "_") for name in known]
    word = wrong.lstrip("-").replace("-", "_")
    place = elsewhere(word, lambda name: "--" + name.replace("_", "-"), names)
    return f"{wrong} is not an option of {command}{place or nearest(wrong, known)}"


def _misused(error: Any, parameters: Iterable[Any], given: Sequence[str]) -> str:
    """An option without its value, or with one that it does not take."""
    name = error.option_name
    attached = [word.partition("=")[2] for word in given if word.startswith(f"{name}=")]
    if "not take a value" in error.message:
        return f'{name} takes no value, but "{"".join(attached[:1])}" is given; write {name} alone'
    meaning = "".join([_meaning(one) for one in parameters if name in one.opts][:1])
    return f"{name} has no value{meaning}{', so' if meaning else ';'} write one after it"


def _refused(error: Any, command: Any, ctx: Any, given: Sequence[str]) -> str:
    """A value of a wrong type or out of its range; the parser's own words say which there are."""
    values, _, _ = command.make_parser(ctx).parse_args(args=list(given))
    value = values.get(error.param.name)
    details = getattr(error.__cause__, "errors", None)
    if callable(details):  # of several values this is the wrong one
        value = details()[0]["input"]
    shown = " ".join(value) if isinstance(value, list | tuple) else value
    reason = str(error.message).rstrip(".")
    must = re.match(r"Input should be ([^,]*)", reason) or re.search(
        r"is not (a valid \w+(?: range)?|in the range .*)$", reason
    )
    expected = (
        re.sub(r"a valid (\w+)( range)?$", lambda found: _KINDS.get(found[1], found[0]), must[1])
        if must
        else ""
    )
    return f'{_name(error.param, given)} is "{shown}"; ' + (
        f"it must be {expected}{_unit(str(error.param.name))}" if must else reason
    )


def _unit(name: str) -> str:
    """`, in` and the unit of an engine option whose number has one."""
    from llmsim.config.engine.options import command_line_options
    from llmsim.config.schema import schema_at, shared_schema

    if name not in command_line_options():
        return ""
    unit = schema_at(shared_schema(), ("engine", name)).get("unit")
    return f", in {unit}" if unit else ""


def _name(parameter: Any, given: Sequence[str] = ()) -> str:
    """How a command line names it: an option by the long name given, else its first; an argument in
    capitals.
    """
    if parameter.param_type_name != "option":
        return str(parameter.name).upper()
    words = {word.partition("=")[0] for word in given}
    return str(
        next(
            (name for name in parameter.opts if name in words and name[:2] == "--"),
            parameter.opts[0],
        )
    )


def _meaning(parameter: Any) -> str:
    """What it is for: the first sentence of its help, which begins with a verb, or of a long one
    the first clause.
    """
    sentence = (getattr(parameter, "help", None) or "").split(". ")[0].rstrip(".")
    if len(sentence.split()) > MOST_WORDS:
        sentence = re.split(r"[:;,] | \(", sentence)[0]
    return f"; it {sentence[0].lower()}{sentence[1:]}" if sentence else ""
