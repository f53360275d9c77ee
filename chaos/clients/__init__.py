"""Clients that mean harm, send nonsense, or are too many."""
