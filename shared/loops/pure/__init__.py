"""The loops in Python: what the compiled ones are held to, and what runs without a compiler.

Only `active` imports from here. A file here has its counterpart in `native/`.
"""
