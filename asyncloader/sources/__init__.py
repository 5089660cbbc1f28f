"""What a recipe starts from, one kind of source a file; ``ops.op.Source`` is what each of them must do."""
