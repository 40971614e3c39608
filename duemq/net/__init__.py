"""Remoting: frames, connections, batches of sends. No broker policy."""
