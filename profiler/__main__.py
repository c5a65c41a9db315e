"""Entry point of `python -m profiler`."""

import sys

from profiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
