"""Each example runs as a program of its own and says what its text promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import Programs
from servers import run_moto

import asyncloader as al

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
_PROGRAMS_ARE_IN = (
    "test_examples.py",
    "test_coming_from.py",
    "test_launched.py",
    "test_parallelism.py",
    "../interop/on_ray/test_batches.py",
    "../interop/on_ray/test_train.py",
    "../interop/test_trainings.py",
    "../interop/test_transformers.py",
)
BUCKET = "s3://corpus/train-{00000..01023}.tar"

SAYS = {
    "async_http.py": r"200 answers of 50 ms each in \d\.\d s, in order",
    "columns.py": (
        r"1714 of 2000 texts in 4 columns: \['number', 'spaces', 'tokens', 'tokens_lengths'\]\n"
        r"a row: \[ 97 108 108  32\], number np.int64\(\d+\), [1-9]\d* spaces"
    ),
    "convert.py": (
        r"40 samples in 5 shards\ncat/029 2000 picture 29 of a cat 0 cat\n"
        r"3 300 \[\{'id': 0, 'height': 1.5\}, \{'id': 1, 'height': 1.501\}\]\nmade again: 2 of 3"
    ),
    "credentials.py": r"100 samples with \{'Bearer secret'\}\n100 samples from URLs that had expired",
    "distributed_checkpoint.py": r"7 batches before, the same 33 after",
    "disk_cache.py": (
        r"epoch 0: 100 samples, 4 requests\nepoch 1: 100 samples, 0 requests\n"
        r"next run: 100 samples, 4 requests\n1 of 4 shards were damaged\nafter that: 100 samples"
    ),
    "hostile_network.py": (
        r"retries=[1-9]\d*, throttled=2, hedges=\d+, cached=0, evicting=0\)\n2000 samples, each once\n"
        r"(.*\n)*.*gave up after 3 attempts"
    ),
    "hub_data_set.py": (
        r"43 batches, 2700 documents\nme/texts has no split 'trian' of config 'en' in Parquet; "
        r"'refs/convert/parquet' has 'de': 'train' \(1 file\); 'en': 'test' \(1 file\), 'train' \(3 files\)"
    ),
    "hub_parquet.py": (
        r"epoch 0: 2000 documents, 12 requests\nepoch 1: 2000 documents, 8 requests\n"
        r"read \d% of the bytes|read 1\d% of the bytes"
    ),
    "hugging_face.py": r"each once: True",
    "images.py": r"10 batches of \(16, 3, 32, 32\) torch\.float32\nresumed with the same crops: True",
    "index_shards.py": (
        r"asyncloader-index.json: \d+ bytes\nrank 0: 26 batches, 260 samples\n"
        r"(rank [123]: 26 batches, 259 samples\n){3}each once: True"
    ),
    "numpy_arrays.py": (r"\(16, 28, 28\) torch.uint8, \(16,\) torch.uint8\n2000 vectors"),
    "metrics.py": r"asyncloader_batches_total\{loader=\"train\"\} 20\.0\n",
    "mixture.py": (
        r"epoch 0: \{'web': 800, 'books': 150, 'chats': 50\}\nepoch 1: .*\n"
        r"epoch 2: \{'web': 400, 'books': 300, 'chats': 300\}\n"
        r"stop='all': 4400 samples, each once\nresumed after 30 batches: .* without a stop: True"
    ),
    "plan_a_run.py": (
        r"num_workers=1: .*\n(.*\n)*num_workers=4: 2,028 samples/s, 0% waiting, limit consumer\n(.*\n)*"
        r"4 ranks go on after 60,416 samples, read \d+ MB again, make \d+ samples/s"
    ),
    "skip_bad.py": (
        r"98 samples, 3 skipped\nsample 7 of 1.jsonl: ValueError\nsample 7 of 3.jsonl: ValueError\n"
        r"shard 0 of 4.jsonl: StoreError"
    ),
    "own_source.py": r"a class: True\na function: True\nrefused: Careless should yield only its part",
    "padded_text.py": r"epoch 2: 600 texts, (9[5-9]|100)% right, \d+ positions of padding",
    "killed_worker.py": (
        r"(.*\n)*1 worker replaced, 80 batches, the same: True\n"
        r"(.*\n)*\S+train-00.jsonl from sample \d+ on: a worker process was killed by signal SIGSEGV"
    ),
    "length_buckets.py": (
        r"batch_size=16: 38 batches of at most [\d,]+ frames, 5\d% of them padding\n"
        r"Buckets: 37 batches of at most [\d,]+ frames, 1\d% of them padding\n"
        r"TokenBatches: 30 batches of at most 1[12],\d+ frames, 4% of them padding"
    ),
    "packed_text.py": (
        r"pool=None: 1000 documents, 0\.\d% padding\npool=1000: 1000 documents, 0\.\d% padding\n"
        r"tokens +\(8, 256\) torch\.int64\n(.*\n)*\d+ steps, loss 4\.\d\d -> [01]\.\d\d"
    ),
    "paid_calls.py": r"(1[6-9]|2\d|3[0-5]) calls for the first batch of 16",
    "presigned_urls.py": r"100 samples with 0 workers\n100 samples with 2 workers\nwithout renew: 403",
    "random_augmentation.py": r"cropped and noised alike with 0, 1 and 3 workers, and after a break\n",
    "resume.py": r"25 batches before, 55 after, together the same as 80 without a stop\n(.*\n)+.*'seed': 1",
    "resume_map_style.py": (
        r"map style: 600 samples before, 400 after, each once; the next epoch is the same\n"
        r"iterable: 600 samples before, 400 after, each once\n.*positions of 2 workers.*num_workers=1"
    ),
    "slow_dataset.py": (
        r"8 batches, .*\nImages\.__getitem__ is the bottleneck\. .*\n.*mostly waits.*\n"
        r"8 batches, .*\nImagesTogether\.__getitem__ is the bottleneck"
    ),
    "slow_loader.py": (
        r"13 batches, .* the loop waited \d+% of the time\.\nmap\(decode\) is the bottleneck\. .*\n"
        r"It mostly waits: pass concurrency=.*\n13 batches, .*\n.* is the bottleneck\. Time in the loader: .*"
    ),
    "stream_object_store.py": (
        r"100 samples, [\d,]+ samples/s, [\d,.]+ MB/s\nNetwork\(requests=4, retries=0, throttled=0"
    ),
    "trace.py": r"\d{3,} events\n14 batches, .*\n.* is the bottleneck\. .*\n.+",
    "tutorial.py": r"epoch 2: loss 0\.\d\d\n(.*\n)*5 batches before the break, 5 after it",
    "write_shards.py": r"clip-00000 .*float32 0 \{'speaker'.*\n250 texts",
}

STEPS = {
    1: "writing shards",
    2: "serving them",
    3: "training",
    4: "streaming one more epoch without the model",
}

# Well above what they take (some seconds) on a machine that does other things too.
_LIMIT_S = 110


# More threads wait for each other, spinning, where cores are few and others use them too.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def run(programs: Programs) -> Callable[..., str]:
    """What an example prints; its own words if it fails."""

    def run(script: Path, *arguments: str) -> str:
        options = {"more": _ONE_THREAD, "strict": False, "one_output": True}
        ran = programs.run(script, *arguments, timeout=_LIMIT_S, **options)
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    return run


def run_module(*command: str, fails: bool = False) -> str:
    """What ``python -m`` prints; its own words if it fails and should not."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert bool(ran.returncode) == fails, ran.stdout
    return ran.stdout


def test_every_example_is_run_here() -> None:
    here = "".join((Path(__file__).parent / name).read_text() for name in _PROGRAMS_ARE_IN)
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in here] == []


@pytest.mark.timeout(120)
def test_quickstart_names_its_steps_and_prints_a_receipt_that_adds_up(run: Callable[..., str]) -> None:
    printed = run(EXAMPLES / "quickstart.py")
    receipt = dict(re.findall(r"^  ([a-z ]+?) {2,}(.*)$", printed, re.MULTILINE))
    steps = [re.search(rf"^{number}\. {step}", printed, re.MULTILINE) for number, step in STEPS.items()]
    assert all(steps), printed
    assert [bar for bar in ("epoch 0:", "epoch 1:", "epoch 2:") if bar not in printed] == []
    assert receipt["samples expected"] == receipt["samples delivered"] != "0"
    assert receipt["lost"] == receipt["repeated"] == "0"
    megabytes, seconds, rate = map(float, re.findall(r"\d+\.\d+", receipt["loader alone"]))
    # Shards of a megabyte each come whole; the rate is theirs, as far as two decimals of seconds tell.
    assert megabytes > 5 and abs(rate * seconds - megabytes) < 0.1 * megabytes + 0.01 * rate
    assert re.match(r"waited \d+\.\d\d of \d+\.\d s \(\d+%\)", receipt["in training"])
    assert re.match(r"[1-9]\d* requests, \d+ retries, \d+ throttled, \d+ hedges", receipt["network"])
    first, last = map(float, receipt["loss"].split(" -> "))
    assert last < first


@pytest.mark.timeout(120)
@pytest.mark.parametrize("example", SAYS)
def test_example_runs_and_says_what_it_found(example: str, run: Callable[..., str]) -> None:
    if example == "hugging_face.py" and not find_spec("datasets"):
        pytest.skip("datasets is in the dependency group 'interop'")
    printed = run(EXAMPLES / example)
    assert re.search(SAYS[example], printed), printed


@pytest.mark.timeout(120)
def test_stream_object_store_takes_a_bucket_by_its_url(tmp_path: Path, run: Callable[..., str]) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    _write_texts(shards, count=40)
    with run_moto() as s3:
        client = s3.client()
        client.create_bucket(Bucket="mine")
        for path in shards.iterdir():
            where = f"some/where/{path.name}"
            client.upload_file(str(path), "mine", where, ExtraArgs={"ACL": "public-read"})
        client.close()
        # The second run asks of each shard in the cache whether it is still the same.
        for _ in range(2):
            printed = run(
                EXAMPLES / "stream_object_store.py", "s3://mine/some/where/", "--workers", "2",
                "--endpoint", s3.endpoint, "--anonymous", "--cache-dir", str(tmp_path / "cache"),
            )  # fmt: skip
            assert re.search(r"^40 samples, .*\nNetwork\(requests=8,", printed, re.MULTILINE), printed


@pytest.mark.timeout(120)
def test_the_tests_of_a_pipeline_pass() -> None:
    printed = run_module("pytest", "-p", "no:cacheprovider", str(EXAMPLES / "test_pipeline.py"))
    assert "3 passed" in printed


@pytest.mark.timeout(250)
def test_a_killed_run_goes_on_with_fewer_ranks_from_their_merged_states(tmp_path: Path) -> None:
    def torchrun(ranks: int, *arguments: str, fails: bool = False) -> str:
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        script = str(EXAMPLES / "resume_torchrun.py")
        return run_module(*launcher, script, "--folder", str(tmp_path), *arguments, fails=fails)

    assert "Signal 9 (SIGKILL)" in torchrun(2, "--die-at", "9", fails=True)
    # Of 64 batches, 16 were in the checkpoint of the eighth step.
    told = torchrun(1)
    assert "48 steps with a world size of 1; trained on 512 of 512 samples, 0 of them twice" in told
    assert "epoch 0: exact: 512 samples in 64 batches by ranks 0, 1, each of 512 once" in told
    assert "each of 512 once" in run_module("asyncloader", "audit", str(tmp_path / "audit"))


@pytest.mark.timeout(120)
def test_uneven_ranks_take_equal_steps(programs: Programs) -> None:
    told, _ = programs.run_ranks(2, EXAMPLES / "uneven_ranks.py", strict=False, timeout=_LIMIT_S)
    assert told.returncode == 0, told.stderr
    assert "rank 0: 34 steps, 130 samples, 0 empty batches" in told.stdout
    assert "rank 1: 34 steps, 14 samples, 30 empty batches" in told.stdout


@pytest.mark.timeout(120)
def test_the_program_for_torchrun_says_so_when_run_alone(programs: Programs) -> None:
    ran = programs.run(EXAMPLES / "resume_torchrun.py", "--folder", "unused", strict=False)
    assert ran.returncode == 2 and "run it with torchrun: torchrun --nproc-per-node 2" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.timeout(120)
def test_readme_streams_every_sample_of_its_shards(tmp_path: Path, run: Callable[..., str]) -> None:
    keys = _write_texts(tmp_path, count=300)
    source = (EXAMPLES / "readme.py").read_text()
    assert source.count(BUCKET) == 1
    script = tmp_path / "readme.py"
    script.write_text(source.replace(BUCKET, str(tmp_path / "train-{00000..00007}.tar")))
    printed = run(script)
    shapes = re.findall(r"torch\.Size\(\[(\d+), \d+\]\) tensor\((\d+)\)", printed)
    assert sum(int(samples) for samples, _ in shapes) == len(keys)
    assert sum(int(length) for _, length in shapes) == sum(len(key) for key in keys)


def _write_texts(folder: Path, count: int) -> Sequence[str]:
    keys = [f"text-{number}" for number in range(count)]
    with al.ShardWriter(folder / "train-{:05d}.tar", samples_per_shard=-(-count // 8)) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": key})
    return keys
