"""Plans of migrations: counts, obstacles and estimates before the start."""
