"""Selectors: conditions on the headers of a message, in the language of JMS (a subset of SQL-92).

`selector` compiles a text, `message_values` takes what it needs out of a message; the rest is how
that is done: `grammar` (text to tree), `expressions` (the tree), `compiling` (tree to closures),
`comparisons` and `patterns` (what closures call).
"""
