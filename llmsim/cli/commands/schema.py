"""`llmsim schema`: the JSON Schema of the cluster file, for editors."""

import json

HELP = "Print the JSON Schema of the cluster file."


def command() -> None:
    from llmsim.config import cluster_schema

    print(json.dumps(cluster_schema(), indent=2))
