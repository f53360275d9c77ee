"""What measurements are made with: brokers of their own, load processes, accounts of both.

May import `chaos`, and what that may except `maintenance`. Nothing here asks a question of its own,
or prints for a person.
"""
