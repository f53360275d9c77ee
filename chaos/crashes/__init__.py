"""Kills at each crash point, and what starts, senders and repairs make of them."""
