"""Turns records into findings; owns the checks that make their own evidence."""
