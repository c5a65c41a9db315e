"""The command tree: every verb of `llmsim` and where it is defined."""

import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, cached_property
from typing import Annotated, Any

import typer
from typer.main import get_command

from llmsim import __version__
from llmsim.cli.commands import completion, emulate, run, serve
from llmsim.cli.commands.answers import cost, diff, export, report, search, size, study, why
from llmsim.cli.commands.files import cluster, schema, times, trace
from llmsim.cli.commands.graphs import graph, graph_step, topology
from llmsim.cli.commands.recordings import calibrate, conformance, validate
from llmsim.cli.first_steps import config_explain, data, doctor, examples, init
from llmsim.cli.run.command_line import PanelledCommand
from llmsim.cli.usage import Command, Group

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class _App(typer.Typer):
    """A tree of verbs that builds the parser of a verb once, whatever number of commands a process
    runs, and those of all verbs only for their list.
    """

    def __call__(self, arguments: Sequence[str], **kwargs: Any) -> Any:
        return self._parser(arguments[0] if arguments else "")(arguments, **kwargs)

    @cache  # noqa: B019  (there are a dozen of these for the whole process)
    def _parser(self, verb: str) -> Any:
        """Of the tree with this verb alone, or whole where it has no such verb."""
        mine = [one for one in self.registered_commands if one.name == verb]
        if not mine:
            return self._whole
        alone = copy(self)
        alone.registered_commands, alone.registered_groups = mine, []
        return get_command(alone)

    @cached_property
    def _whole(self) -> Any:
        return get_command(self)


def _new(help_text: str) -> typer.Typer:
    return _App(
        cls=Group,
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # panels cut long option names at 80 columns
        context_settings=SETTINGS,
    )


def _add(
    to: typer.Typer, name: str, help_text: str, act: Callable[..., Any], **settings: Any
) -> None:
    """A verb; in the list of verbs stands its first clause, whole (typer would cut it), without
    what is in brackets.
    """
    clause = re.split(r"[.:;] ", re.sub(r" \([^)]*\)", "", help_text) + " ")[0]
    to.command(
        name,
        help=help_text,
        short_help=f"{clause.strip().rstrip('.')}.",
        **{"cls": Command, **settings},
    )(act)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"llmsim {__version__}")
        raise typer.Exit


app = _new("Simulate LLM serving clusters without a GPU.")


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


_add(app, "init", init.HELP, init.command)
_add(app, "run", run.HELP, run.command, cls=PanelledCommand)
_add(app, "serve", serve.HELP, serve.command, context_settings=serve.SETTINGS)
_add(
    app,
    "emulate",
    emulate.HELP,
    emulate.command,
    cls=emulate.CommandBeforeClient,
    context_settings=emulate.SETTINGS,
)
_add(app, "cluster", cluster.HELP, cluster.command)
_add(app, "validate", validate.HELP, validate.command)
_add(app, "calibrate", calibrate.HELP, calibrate.command, context_settings=calibrate.SETTINGS)
_add(app, "cost", cost.HELP, cost.command)
_add(app, "diff", diff.HELP, diff.command)
_add(app, "size", size.HELP, size.command)
_add(app, "why", why.HELP, why.command)
_add(app, "report", report.HELP, report.command)
_add(app, "export", export.HELP, export.command)
_add(app, "search", search.HELP, search.command)
_study = _new("Answer questions about deployments with several runs.")
_add(_study, "hetero", study.HETERO_HELP, study.hetero)
app.add_typer(_study, name="study")
_add(app, "completion", completion.HELP, completion.command)
_add(app, "schema", schema.HELP, schema.command)
_add(app, "doctor", doctor.HELP, doctor.command)
_examples = _new("List, copy and run the bundled examples.")
_add(_examples, "list", examples.LIST_HELP, examples.list_examples)
_add(_examples, "copy", examples.COPY_HELP, examples.copy_example)
_add(
    _examples,
    "run",
    examples.RUN_HELP,
    examples.run_example,
    context_settings=examples.RUN_SETTINGS,
)
app.add_typer(_examples, name="examples")
_data = _new("List and fetch public logs and traces.")
_add(_data, "list", data.LIST_HELP, data.list_files)
_add(_data, "fetch", data.FETCH_HELP, data.fetch)
app.add_typer(_data, name="data")
_config = _new("Explain cluster files.")
_add(_config, "explain", config_explain.HELP, config_explain.command)
app.add_typer(_config, name="config")
_conformance = _new("Compare the schedulers with recordings of real ones.")
_add(_conformance, "schedules", conformance.SCHEDULES_HELP, conformance.schedules)
_add(_conformance, "vllm", conformance.VLLM_HELP, conformance.vllm)
_add(_conformance, "sglang", conformance.SGLANG_HELP, conformance.sglang)
app.add_typer(_conformance, name="conformance")
_times = _new("Import operator times and show their sources.")
_add(_times, "import", times.IMPORT_HELP, times.import_table)
_add(_times, "show", times.SHOW_HELP, times.show)
app.add_typer(_times, name="times")
_trace = _new("Inspect traces and convert them.")
_add(_trace, "inspect", trace.INSPECT_HELP, trace.inspect)
_add(_trace, "convert", trace.CONVERT_HELP, trace.convert)
app.add_typer(_trace, name="trace")
_graph = _new("Write execution graphs of models for the command astra-sim.")
_add(_graph, "generate", graph.GENERATE_HELP, graph.generate)
_add(_graph, "step", graph_step.HELP, graph_step.command, context_settings=graph_step.SETTINGS)
app.add_typer(_graph, name="graph")
_topology = _new("List, write and measure the networks of clusters.")
_add(_topology, "list", topology.LIST_HELP, topology.list_presets)
_add(_topology, "export", topology.EXPORT_HELP, topology.export)
_add(_topology, "busbw", topology.BUSBW_HELP, topology.busbw)
app.add_typer(_topology, name="topology")

run_app = _new(run.HELP)
run_app.command(help=run.HELP, cls=PanelledCommand)(run.command)
