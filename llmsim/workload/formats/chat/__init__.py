"""Trace formats of chats and agents with sessions."""
