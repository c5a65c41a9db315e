"""The verbs of `python -m llmsim.profiler`: measure, serve-log, dry run."""
