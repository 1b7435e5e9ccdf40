"""Decisions and arithmetic without a database, a clock, a thread or a file: the moment and the dice are arguments."""
