"""passmuster: decides for every GPU host of a mixed fleet whether it passes muster."""

__version__ = "0.1.0"
