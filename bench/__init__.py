"""Measurements of the product by itself: one question a file, each a function the command calls."""
