"""Making, syncing, mapping and listing files, and what each call has made durable on return.

May import the ground. Never a format: the rules of durability are the same for all files, and a
second copy of them beside some format would sooner or later differ.
"""
