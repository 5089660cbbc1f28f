"""Have what a loader counts collected, and see what is logged."""

import logging

from prometheus_client import REGISTRY, generate_latest

import asyncloader as al

train = al.DataLoader(al.from_iterable(range(1_000)), batch_size=50)
metrics = al.observe.Metrics(train=train)
metrics.to_prometheus()  # or to_opentelemetry(), or both

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
logging.getLogger("asyncloader").setLevel(logging.INFO)

for _ in train:
    pass  # instead of training

for line in generate_latest(REGISTRY).decode().splitlines():
    if line.startswith("asyncloader_batches"):
        print(line)
