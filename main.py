"""The command people know: `python main.py --cluster-config ... --dataset ...` is `llmsim run`."""

import sys

try:
    from llmsim.cli import run_main

    code = run_main()
except KeyboardInterrupt:  # before the command line could take care of it
    print("llmsim: error: interrupted before anything was computed", file=sys.stderr)
    code = 130
sys.exit(code)
