"""The verbs of `llmsim`, one file each."""
