"""What happens to a broker's processes while they run: kills, stops, lost bells, clocks, memory.

May import `client`, `shared`, and the other rooms and tools of `chaos`. It must never open a store
while a broker has it: what is left is judged when the broker has ended.
"""
