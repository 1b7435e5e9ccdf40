"""The command line: parse, one call of the client, render, exit code."""
