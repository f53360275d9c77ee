"""What a consumer has asked for, has at hand, has passed over, and has put aside.

May import its neighbours in client.core, and shared, but never the consumer core that uses it.
"""
