"""Attacks, by their target. Each gets a broker and dice, and returns what is wrong with the answers
it got.

Few are malformed: they are dangerous for how much they ask for, or what they claim. `attack.py`,
next to this folder, judges how other clients fare meanwhile; no attack may import it.
"""
