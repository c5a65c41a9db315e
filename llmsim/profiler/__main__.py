"""Entry point of `python -m llmsim.profiler`."""

import sys

from llmsim.profiler.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
