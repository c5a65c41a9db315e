"""Reads Hugging Face configurations into a model's layers, by rules of each family."""
