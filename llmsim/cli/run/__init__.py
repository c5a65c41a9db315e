"""What `llmsim run` does around a simulation: options, progress, signals, outputs, exit code."""
