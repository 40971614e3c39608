"""Steps of a migration and their throttle."""
