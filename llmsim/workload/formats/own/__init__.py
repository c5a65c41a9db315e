"""Logs of the user's own, under usual or given names, and requests of OpenAI's API."""
