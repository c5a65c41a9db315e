"""The verbs of `python -m profiler`: measure, serve-log, dry run."""
