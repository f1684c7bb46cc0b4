"""What a node or a command asks for in one call, and what that would do: the rooms below, put to work.

`datasets` and `prepare` make and show datasets, `train`, `validate` and `export` do what they say,
`previews` are the small pictures while training goes on, and `foreseen` is the plan of all that for
``--dry-run``. Nothing that a dry run asks for imports torch.
"""
