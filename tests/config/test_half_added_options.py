"""An engine option that one of its classes lacks fails at import, by its name."""

from dataclasses import fields

import pytest

from llmsim.cli.run import run_options
from llmsim.cli.run.command_line import CommandLine
from llmsim.config.engine import args as engine_args
from llmsim.config.engine.options import EngineOptions, EngineOverrides

OPTIONS = tuple(EngineOptions.model_fields)
OVERRIDES = tuple(one.name for one in fields(EngineOverrides))
ARGUMENTS = tuple(one.name for one in fields(engine_args.EngineArgs))
COMMAND_LINE = tuple(one.name for one in fields(CommandLine))


@pytest.mark.parametrize("which", range(3))
def test_an_option_that_a_class_lacks_is_named(which: int) -> None:
    given = [OPTIONS, OVERRIDES, ARGUMENTS]
    for name in OPTIONS:
        without = [*given]
        lost = engine_args.OTHER_NAMES.get(name, name) if which == 2 else name
        without[which] = tuple(one for one in given[which] if one != lost)
        with pytest.raises(TypeError, match=r"the engine option .* is half added"):
            engine_args.check_agreement(*without)
    engine_args.check_agreement(*given)


def test_a_new_option_of_one_class_is_named() -> None:
    for which in range(2):
        given = [OPTIONS, OVERRIDES, ARGUMENTS]
        given[which] = (*given[which], "prefetch_depth")
        with pytest.raises(TypeError, match="the engine option prefetch_depth is half added: Engine"):
            engine_args.check_agreement(*given)
    everywhere = ((*OPTIONS, "prefetch_depth"), (*OVERRIDES, "prefetch_depth"), (*ARGUMENTS, "prefetch_depth"))
    engine_args.check_agreement(*everywhere)
    with pytest.raises(TypeError, match="prefetch_depth is half added: neither ENGINE nor FILE_ONLY names it"):
        run_options.check_agreement((*OVERRIDES, "prefetch_depth"), COMMAND_LINE)


def test_an_option_that_the_command_line_lacks_is_named() -> None:
    for name in (*run_options.ENGINE, *run_options.READ_APART):
        with pytest.raises(TypeError, match=f"the engine option {name} is half added: CommandLine"):
            run_options.check_agreement(OVERRIDES, tuple(one for one in COMMAND_LINE if one != name))
