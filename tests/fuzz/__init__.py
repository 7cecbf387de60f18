"""Hostile inputs by the thousand: `make fuzz`, and a share of it among the tests.

Every case is drawn from (seed, family, number) and can be repeated alone. A case passes where the
program gives the right answer or refuses in one line; it fails with a traceback, another answer, a
hang, or more memory than a laptop has.
"""
