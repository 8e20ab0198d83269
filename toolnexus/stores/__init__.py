"""Where conversations and long outputs are kept.

`conversations` and `outputs` have the protocols and the stores; `journal` is the form of a
conversation's file, `files` what the two file stores share.
"""
