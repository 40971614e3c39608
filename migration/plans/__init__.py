"""Plans: what a migration would do, counted before it starts."""
