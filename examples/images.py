"""Train on images: decode on threads, augment at random in workers, and continue with the same crops."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import asyncloader as al

SIZE = 32
DEVICE = "cuda" if torch.cuda.is_available() else None


def write_pictures(folder: Path) -> None:
    """JPEGs of unequal sizes, and their classes."""
    rng = np.random.default_rng(0)
    with al.ShardWriter(folder / "train-{:02d}.tar", samples_per_shard=40) as writer:
        for number in range(160):
            pixels = rng.integers(0, 256, (40 + number % 9, 40 + number % 7, 3), np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG")
            writer.write({"__key__": f"{number:04d}", "jpg": file.getvalue(), "cls": number % 10})


def transform(image: torch.Tensor) -> torch.Tensor:
    """A random crop and flip that draw from torch's global generator, as torchvision's do."""
    top, left = (int(torch.randint(length - SIZE + 1, ())) for length in image.shape[1:])
    image = image[:, top : top + SIZE, left : left + SIZE]
    return image.flip(2) if torch.rand(()) < 0.5 else image


# With torchvision:
# transform = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4)])


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    image = torch.tensor(sample["jpg"]).permute(2, 0, 1)  # (3, H, W) uint8
    with al.sample_seeded():  # the draws depend on the sample and the epoch only
        return {"image": transform(image), "label": sample["cls"]}


def make_loader(folder: Path) -> al.DataLoader[Any]:
    dataset = (
        al.from_urls(f"{folder}/train-*.tar")
        .shuffle(100, seed=0)
        .decode(concurrency=4)  # "jpg" to (H, W, 3) uint8, "cls" to int; on threads
        .map(augment)
    )
    return al.DataLoader(dataset, batch_size=16, num_workers=2, device=DEVICE)


def read(loader: al.DataLoader[Any], stop: int | None = None) -> list[torch.Tensor]:
    """What a model would get, up to ``stop`` batches."""
    batches = []
    for batch in loader:
        batches.append(batch["image"].float() / 255)  # on the device
        if len(batches) == stop:
            break
    return batches


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_pictures(Path(name))
        whole = read(make_loader(Path(name)))
        print(f"{len(whole)} batches of {tuple(whole[0].shape)} {whole[0].dtype}")

        first, second = make_loader(Path(name)), make_loader(Path(name))
        before = read(first, stop=4)
        second.load_state_dict(first.state_dict())
        resumed = before + read(second)
        same = len(resumed) == len(whole) and all(map(torch.equal, resumed, whole))
        print("resumed with the same crops:", same)
