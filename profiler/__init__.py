"""`python -m profiler` in a checkout; the package is `llmsim.profiler`."""
