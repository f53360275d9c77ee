"""What each request does: a function for each, which `processors` has in its table.

May import `shared`, `remoting`, and all of the gateway. No state: a function has the call and the
gateway's parts, so that a connection may end between any two requests.
"""
