"""The broker process: assembly, plugins, roles, start and stop."""
