"""What was measured, put into words, tables and plots, beside what the machine can do.

May import `bench/loads`, and what that may. Nothing of the product is measured here.
"""
