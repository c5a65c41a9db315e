"""The command line of `run`: every option of `Given` and of the engine, as typer reads it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from llmsim.api.checked.given import Given
from llmsim.api.options import PANELS, engine
from llmsim.api.options.option import Option, option
from llmsim.cli.usage import Command
from llmsim.config.engine.options import OnCommandLine, command_line_options


def given_path(text: str) -> Path:
    """A path that was given: `Path` itself takes an empty one (`--run-dir "$UNSET"`) for the
    current directory.
    """
    if not text:
        raise typer.BadParameter("the path is empty; name one, or leave the option out")
    return Path(text)


class PanelledCommand(Command):
    """A command whose help lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(
                    getattr(parameter, "rich_help_panel", None) or "Other", []
                ).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


def taking_command_line(act: Callable[[typer.Context, Given], int]) -> Callable[..., int]:
    """`act` as typer takes it: a function with a parameter for every field of `Given` and every
    engine option.
    """
    rows = command_line_options()

    def command(context: typer.Context, **given: Any) -> int:
        engine_options = {name: value for name in rows if (value := given.pop(name)) is not None}
        return act(context, Given(engine_options=engine_options, **given))

    types = get_type_hints(Given, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    defaults = Given.defaults()
    for name in Given.__struct_fields__:
        if name == "engine_options":
            parameters += [_engine_parameter(row, mark, text) for row, (mark, text) in rows.items()]
            continue
        default = defaults.get(name, inspect.Parameter.empty)
        annotation = _for_typer(types[name])
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {
        "return": int
    }
    return command


def _engine_parameter(name: str, mark: OnCommandLine, text: str) -> inspect.Parameter:
    kind: Any = mark.kind | None
    annotation = _for_typer(
        Annotated[kind, option(engine.PANEL, *mark.declarations(name), text=text)]
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _for_typer(annotation: Any) -> Any:
    """An annotated type whose option is typer's."""
    kind, declared = get_args(annotation)
    return Annotated[kind, _typer_option(declared)]


def _typer_option(declared: Option) -> object:
    return typer.Option(
        *declared.names,
        help=declared.text,
        rich_help_panel=declared.panel,
        show_default=declared.show_default,
        metavar=declared.metavar,
        parser=given_path if declared.is_path else None,
    )
