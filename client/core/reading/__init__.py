"""What a consumer has at hand, has passed over, and has put aside.

May import its neighbours in client.core, and shared. Never the core that uses it: no request and no
answer is known here.
"""
