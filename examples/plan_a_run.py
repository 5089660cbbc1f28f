"""See how many workers a run will need, and what a resize of it costs, before there is a machine."""

from dataclasses import replace

from asyncloader.simulate import Link, Operator, Setting, ShardSize, simulate, simulate_resize

setting = Setting(
    shards=[ShardSize(size_bytes=200_000_000, samples=2_000)] * 60,
    link=Link(first_byte_s=0.05, connection_bytes_s=40e6, machine_bytes_s=1.25e9),  # 10 Gbit/s
    ranks=8,
    ranks_per_machine=8,
    operators=[Operator(sample_s=0.009, name="map(decode)")],  # as measured on one processor
    batch_size=64,
    step_s=0.25,
)

for num_workers in (1, 2, 3, 4):
    outcome = simulate(replace(setting, num_workers=num_workers))
    print(
        f"num_workers={num_workers}: {outcome.samples_per_s:,.0f} samples/s, "
        f"{outcome.wait_share:.0%} waiting, limit {outcome.limit}"
    )

three = replace(setting, num_workers=3)
indexed = replace(three, is_indexed=True)
for each in (three, indexed):
    outcome = simulate(each)
    lanes = outcome.lane_samples
    print(f"lanes of {lanes.least:,} to {lanes.most:,} samples: {outcome.samples_per_s:,.0f} samples/s")

resized = simulate_resize(indexed, ranks=4, fraction=0.5)
print(
    f"4 ranks go on after {resized.samples_before:,} samples, "
    f"read {resized.read_again_bytes / 1e6:,.0f} MB again, make {resized.rest.samples_per_s:,.0f} samples/s"
)
