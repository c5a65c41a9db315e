"""`python -m llmsim` is the `llmsim` command."""

import sys

try:
    from llmsim.cli import main

    code = main()
except KeyboardInterrupt:  # before the command line could take care of it
    print("llmsim: error: interrupted before anything was computed", file=sys.stderr)
    code = 130
sys.exit(code)
