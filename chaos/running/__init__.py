"""What happens to a broker's processes while they run: kills, stops, lost bells, clocks, memory."""
