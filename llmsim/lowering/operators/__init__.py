"""What a group's features do to its operators: stages, context parallelism, adapters, encoders."""
