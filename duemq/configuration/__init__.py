"""Configuration of the broker: sections, files, changes over the wire."""
