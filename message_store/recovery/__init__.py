"""Recovery after a stop, a kill or a power cut; checkpoint and marks of an open store."""
