"""The command tree: every verb of `llmsim` and where it is defined."""

import typer

from llmsim.cli import calibrate, conformance, cost, graph, graph_step, run, schema, times, topology, trace, validate
from llmsim.cli.command_line import PanelledCommand

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def _new(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # panels cut long option names at 80 columns
        context_settings=SETTINGS,
    )


app = _new("Simulates LLM serving clusters, without a GPU.")
app.command("run", help=run.HELP, cls=PanelledCommand)(run.command)
app.command("validate", help=validate.HELP)(validate.command)
app.command("calibrate", help=calibrate.HELP, context_settings=calibrate.SETTINGS)(calibrate.command)
app.command("cost", help=cost.HELP)(cost.command)
app.command("schema", help=schema.HELP)(schema.command)
_conformance = _new("Compares the schedulers with recordings of the real ones.")
_conformance.command("schedules", help=conformance.SCHEDULES_HELP)(conformance.schedules)
_conformance.command("vllm", help=conformance.VLLM_HELP)(conformance.vllm)
app.add_typer(_conformance, name="conformance")
_times = _new("Operator times: imports them from external simulators, shows where they come from.")
_times.command("import", help=times.IMPORT_HELP)(times.import_table)
_times.command("show", help=times.SHOW_HELP)(times.show)
app.add_typer(_times, name="times")
_trace = _new("Looks into traces and converts them.")
_trace.command("inspect", help=trace.INSPECT_HELP)(trace.inspect)
_trace.command("convert", help=trace.CONVERT_HELP)(trace.convert)
app.add_typer(_trace, name="trace")
_graph = _new("Execution graphs of models, for the command astra-sim.")
_graph.command("generate", help=graph.GENERATE_HELP)(graph.generate)
_graph.command("step", help=graph_step.HELP, context_settings=graph_step.SETTINGS)(graph_step.command)
app.add_typer(_graph, name="graph")
_topology = _new("The bundled networks, and networks as files.")
_topology.command("list", help=topology.LIST_HELP)(topology.list_presets)
_topology.command("export", help=topology.EXPORT_HELP)(topology.export)
app.add_typer(_topology, name="topology")

run_app = _new(run.HELP)
run_app.command(help=run.HELP, cls=PanelledCommand)(run.command)
