"""asyncloader beside other loaders, each workload with each of them in turn: what `against_peers.py` runs.

`workloads` is the table of what is run, of `rows`. `corpora` writes what is read, and `places` serves it. An
`over_*` module is one loader, with a function for each workload that it takes part in, and `limits` what the
machine gives without any; `one_pass` measures one of them in a process of its own, and `rounds` runs them in
turn. `report` and `plot` write what was found.
"""
