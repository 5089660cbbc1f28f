"""Stop in the middle of an epoch and go on, with another number of workers."""

import json
import tempfile
from pathlib import Path

import asyncloader as al

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=100) as writer:
    for number in range(800):
        writer.write({"number": number})

dataset = al.from_urls(str(folder / "train-{00..07}.jsonl")).shuffle(64, seed=0)

whole = [batch["number"].tolist() for batch in al.DataLoader(dataset, batch_size=10, lanes=4)]

loader = al.DataLoader(dataset, batch_size=10, lanes=4, num_workers=2)
before = []
for batch in loader:
    before.append(batch["number"].tolist())
    if len(before) == 25:
        break
Path(folder / "loader.json").write_text(json.dumps(loader.state_dict()))
loader.close()

resumed = al.DataLoader(dataset, batch_size=10)  # no workers now; the state says how many lanes there are
resumed.load_state_dict(json.loads(Path(folder / "loader.json").read_text()))
resumed.warm_up()  # begins to read; build the model now
after = [batch["number"].tolist() for batch in resumed]

assert before + after == whole
print(f"{len(before)} batches before, {len(after)} after, together the same as {len(whole)} without a stop")

other = al.DataLoader(dataset.shuffle(64, seed=1), batch_size=10)
try:
    other.load_state_dict(loader.state_dict())
except ValueError as error:
    print(error)
