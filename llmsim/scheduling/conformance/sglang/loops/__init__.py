"""SGLang's event loops of a server: with prompts, with decodes, and of ranks in lock-step."""
