"""How a group's ranks share a model: tensor, pipeline, expert and context parallelism."""
