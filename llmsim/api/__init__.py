"""The Python API: `llmsim.run` and what it takes and gives."""
