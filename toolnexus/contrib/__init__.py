"""Web frameworks: one runtime for each process of a Flask or Django application.

Each module imports its framework, which comes with the extra of the same name.
"""
