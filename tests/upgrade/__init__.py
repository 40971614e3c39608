"""Stores of the former version."""
