"""The runtime: handles, their moves, and the verbs that cause them."""
