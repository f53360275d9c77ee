"""Attacks, by what they strike. Each gets a broker and chance, and returns what is wrong with the
answers it got.

None is malformed for long: what makes them dangerous is how much they ask for, or what they claim.
How others fare meanwhile is for `attack.py` beside this folder, which no attack may import.
"""
