"""One option, one row: every form of an engine option comes from its row, and a half-added one
fails at import.
"""

from pathlib import Path

import pytest
import typer

from llmsim.cli.app import app
from llmsim.config.engine import args as engine_args
from llmsim.config.engine.options import (
    EngineOptions,
    EngineOverrides,
    command_line_options,
    scheduler_parameters,
)
from llmsim.config.engine.reference import options_page

OPTIONS = EngineOptions.model_fields.keys()
ARGUMENTS = engine_args.EngineArgs.__struct_fields__


def test_an_option_that_the_arguments_lack_is_named() -> None:
    for name in (
        OPTIONS - scheduler_parameters().keys()
    ):  # those are in one field, whatever they are
        lost = engine_args.OTHER_NAMES.get(name, name)
        with pytest.raises(
            TypeError, match=r"the engine option .* is half added: EngineArgs does not have it"
        ):
            engine_args.check_agreement(OPTIONS, tuple(one for one in ARGUMENTS if one != lost))
    with pytest.raises(TypeError, match="the engine option prefetch_depth is half added"):
        engine_args.check_agreement((*OPTIONS, "prefetch_depth"), ARGUMENTS)
    engine_args.check_agreement(OPTIONS, ARGUMENTS)


def test_an_unknown_override_is_named() -> None:
    with pytest.raises(TypeError, match="no engine option is called prefetch_depth"):
        EngineOverrides(prefetch_depth=3)


def test_every_marked_row_is_an_option_of_run() -> None:
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {parameter.name: parameter for parameter in run.params}
    rows = command_line_options()
    assert len(rows) > 25
    for name, (mark, text) in rows.items():
        parameter = known[name]
        assert parameter.help == text
        words = {*parameter.opts, *parameter.secondary_opts}
        assert {word for names in mark.declarations(name) for word in names.split("/")} == words


def test_the_reference_page_is_that_of_the_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"
    assert page.read_text(encoding="utf-8") == options_page(), (
        "llmsim schema --options > docs/reference/options.md"
    )
