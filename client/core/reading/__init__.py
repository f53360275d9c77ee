"""What a consumer has at hand, has passed over, and has put aside.

May import its neighbours in client.core, and shared. It must not import the consumer core that uses
it.
"""
