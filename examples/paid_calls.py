"""Ask a service that costs money about each sample, and little beyond what is used."""

import asyncio
from typing import Any

import asyncloader as al

calls = 0


async def ask(number: int) -> dict[str, Any]:
    global calls
    calls += 1
    await asyncio.sleep(0.01)  # the service
    return {"number": number}


dataset = al.from_iterable(lambda topology: topology.split(range(1000))).shuffle(100, seed=0)

loader = al.DataLoader(dataset.map(ask), batch_size=16, prefetch_factor=1)
batch = next(iter(loader))
print(f"{calls} calls for the first batch of {len(batch['number'])}")
