"""POP consumption: checkpoints and acknowledgements as timers. docs/decisions/0048."""
