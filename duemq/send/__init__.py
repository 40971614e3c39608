"""Sends, messages sent back, replies: every way in which a client puts a message."""
