"""Comparison of DueMQ with the systems that users pick for delayed messages."""
