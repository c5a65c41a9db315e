"""What runs in the processes of a load generator; it imports nothing of llmsim that has
dependencies.
"""
