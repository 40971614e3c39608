"""Steps of a migration, their throttle and their time window."""
