"""The host agent's senses: reads devices, kernel log and host, and ships records."""
