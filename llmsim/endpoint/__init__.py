"""An OpenAI-compatible endpoint over the simulator: requests come over HTTP while it runs."""
