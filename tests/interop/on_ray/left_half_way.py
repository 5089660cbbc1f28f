"""A program leaves a pass by Ray actors half-way: ``left_half_way.py FOLDER HOW``."""

import os
import signal
import sys

import asyncloader as al

if __name__ == "__main__":
    folder, how = sys.argv[1:]
    recipe = al.from_urls(f"{folder}/*.jsonl").map(lambda sample: {"number": sample["number"]})
    loader = al.DataLoader(recipe, 8, workers=al.RayWorkers(1, num_cpus=0.1))
    for _ in loader:
        print("a batch has come", flush=True)
        if how == "a return":
            break
        if how == "an error":
            raise LookupError("of the loop")
        if how == "an exit with a loop open":
            sys.exit()
        if how == "a kill":
            os.kill(os.getpid(), signal.SIGKILL)
    batches = iter(loader)
    next(batches)  # of another pass, which nobody closes
