"""Remoting: codec, connections, TLS, servers and clients. No broker policy."""
