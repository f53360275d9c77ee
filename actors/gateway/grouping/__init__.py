"""Clients as members of groups and as producers, and what the gateway asks others for them.

It is known to requests, and knows none of them.
"""
