"""What runs in the engine's own processes; it imports the engine and nothing of llmsim that has
dependencies.
"""
