"""Pure translation between the canonical transcript and a provider's wire form.

`styles.dialect_of` gives the module that speaks a style; each has the functions of
`base.Dialect`. `view.complete` balances a transcript before every request.
"""
