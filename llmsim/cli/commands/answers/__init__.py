"""Verbs about results and deployments: what is best, why it is so, and what changed."""
