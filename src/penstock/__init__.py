"""Penstock: RocketMQ's storage engine and broker in Python.

This folder is only the import name: each entry links to the top-level folder of the same name.
"""

__version__ = "0.1.0"
