"""Breaks brokers, and judges what is left: a room for each kind of harm, with the tools around
them.

A kind of harm is a function of an arena and dice. `campaigns` names them all; what several kinds
need (a broker, its load, its history, the judgement) lies here, not in a room.

May import `actors`, `client`, `maintenance`, `remoting`, `spark` and `shared`. No file of the
product imports it, so a broker runs without what breaks it.
"""
