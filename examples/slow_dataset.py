"""See what a loop waits for that reads a map-style dataset."""

import asyncio
import time

import asyncloader as al


class Images:
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)  # as a request might take
        return index


class ImagesTogether(Images):
    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0.002)
        return index


if __name__ == "__main__":
    loader = al.DataLoader(Images(), batch_size=16)
    for _ in loader:
        pass  # instead of training
    print(loader.report())
    assert loader.report().limit == "Images.__getitem__"

    fetched_together = al.DataLoader(ImagesTogether(), batch_size=16)
    for _ in fetched_together:
        pass
    print(fetched_together.report())
    assert fetched_together.statistics.elapsed_s < loader.statistics.elapsed_s
