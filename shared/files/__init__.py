"""Making, syncing, mapping and listing files, and what each call has made durable on return.

May import only the ground of shared/. It must never know a format: the rules of durability are the
same for all files, and a second copy of them next to a format would sooner or later differ.
"""
