"""Topics, consumer groups, connected clients and consumer offsets, with their files."""
