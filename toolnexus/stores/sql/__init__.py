"""The contract of a run store in SQL that SQLite and PostgreSQL have in common.

`session` is what a database has to offer, `schema` its tables; `owning`, `writing`, `reading`
and `keeping` are the methods of the contract, and `store` is all of them in one class.
"""
