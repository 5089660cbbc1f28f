"""See how many workers a run will need, and what a resize of it costs, before there is a machine."""

from dataclasses import replace

from asyncloader.tools.simulate import PlannedRun, simulate, simulate_resize

run = PlannedRun(
    shard_bytes=[200_000_000] * 60,
    shard_samples=[2_000] * 60,
    first_byte_s=0.05,
    connection_bytes_s=40e6,
    link_bytes_s=1.25e9 / 8,  # 10 Gbit/s, which eight ranks of a machine share
    map_s=0.009,  # as measured on one processor
    step_s=0.25,
    ranks=8,
    batch_size=64,
)

for num_workers in (1, 2, 3, 4):
    outcome = simulate(replace(run, num_workers=num_workers))
    print(
        f"num_workers={num_workers}: {outcome.samples_per_s:,.0f} samples/s, "
        f"{outcome.wait_share:.0%} waiting, limit {outcome.limit}"
    )

three = replace(run, num_workers=3)
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
