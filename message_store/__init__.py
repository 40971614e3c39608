"""The commit log everything else is derived from. It has no idea of delay."""
