"""What a start does, one file a step, and how a broker run is opened and closed.

May import all other rooms. Runs while no actor does, in the supervisor, so nothing else here may be
needed by an actor: it would load all of it.
"""
