"""The fixed delay levels: SCHEDULE_TOPIC_XXXX, one queue per level."""
