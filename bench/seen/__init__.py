"""What a person waits for: commands, a test's broker, and the monitor's page in a browser.

May import `bench/loads`, `bench/log` and what these may. No bar is in it.
"""
