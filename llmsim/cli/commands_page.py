"""The reference page of all commands and their options (`llmsim schema --commands`)."""

from collections.abc import Iterator
from typing import Any

HEADING = """\
# Commands

`llmsim schema --commands` prints this page. Engine options of `llmsim run` are on
[their own page](options.md). `astra-sim` has [its own page](engine/command.md) too.
"""


def commands_page() -> str:
    """The page in Markdown: a section per command, with its arguments and options."""
    import typer

    from llmsim.cli.app import app
    from llmsim.config.engine.options import command_line_options

    command = typer.main.get_command(app)
    engine = {f"--{name.replace('_', '-')}" for name in command_line_options()}
    return HEADING + "".join(_sections("llmsim", command, engine))


def _sections(name: str, command: Any, engine: set[str]) -> Iterator[str]:
    """The section of a command, or those of the commands of a group."""
    for verb, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _sections(f"{name} {verb}", below, engine)
    if hasattr(command, "commands"):
        return
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    usage = " ".join([name, *(f"<{one.name}>" for one in arguments)])
    yield f"\n## {name}\n\n{_plain(command.help)}\n\nUsage: `{usage}`\n"
    taken = {option for one in shown for option in one.opts}
    elsewhere = engine if engine <= taken else set()  # a command with a few shows them
    rows = [_row(one) for one in shown if not elsewhere & set(one.opts)]
    if rows:
        yield "\n| option | default | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`<{parameter.name}>`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"| {names} | {_default(parameter)} | {_plain(getattr(parameter, 'help', ''))} |\n"


def _default(parameter: Any) -> str:
    """The default as --help shows it; nothing for a switch that is off."""
    if isinstance(getattr(parameter, "show_default", None), str):
        return str(parameter.show_default)
    value = parameter.default
    if parameter.required:
        return "required"
    if callable(value) or value is None or value is False or value == "":
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(text: str | None) -> str:
    """One line, with what Markdown would read as markup or as a cell's end escaped."""
    words = " ".join((text or "").split())
    for sign in ("|", "<", "*"):
        words = words.replace(sign, f"\\{sign}")
    return words
