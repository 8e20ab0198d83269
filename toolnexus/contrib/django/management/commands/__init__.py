"""Commands of `manage.py`, one to a file."""
