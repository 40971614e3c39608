"""Pulls, held pulls, consumer progress and queue locks."""
