"""The file: SQL, SQLite and its traps. No decisions are made here.

From the bottom up: `failures` (SQLite's errors as ours), `process` (one lock, and what a fork does), `transaction`
(`Tx`), `guard`, `filesystem`, `files`, `schema`, `database`, and on top of those the modules of statements.
"""
