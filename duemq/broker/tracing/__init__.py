"""OpenTelemetry traces of messages."""
