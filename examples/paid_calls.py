"""Ask a service that costs money about each sample, and never about more than was asked for."""

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

loader = al.DataLoader(dataset.map(ask, concurrency=16), batch_size=16, ahead=0)
batch = next(iter(loader))
print(f"{calls} calls for one batch of {len(batch['number'])}")

calls = 0
for _ in al.DataLoader(dataset.map(ask, concurrency=16), batch_size=16, ahead=16):
    break
print(f"{calls} calls with one batch ahead")
