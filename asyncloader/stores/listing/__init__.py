"""What prefixes and globs of servers mean: asked by ``asking``, answered in a process of its own."""
