"""Request processing of pulls, long polling, consumer offsets and queue locks."""
