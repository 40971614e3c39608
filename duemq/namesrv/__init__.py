"""The name server: which broker has which topic, and our own registration with others."""
