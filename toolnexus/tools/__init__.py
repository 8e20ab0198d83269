"""Tools: where they come from."""
