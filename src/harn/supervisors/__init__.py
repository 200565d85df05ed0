"""Supervisor trees."""
