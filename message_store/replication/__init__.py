"""Append of log bytes that another broker encoded."""
