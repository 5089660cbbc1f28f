"""The facade: what it counts, shows and forwards. What it streams is proved in ``end_to_end``."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from corpus import Corpus, keys_of
from waiting import until

import asyncloader as al
from asyncloader import testing
from asyncloader.workers.forkserver import ForkServer


def numbers(count: int = 20) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


@pytest.mark.parametrize("num_workers", [0, 3])
def test_constructing_a_loader_opens_nothing_and_starts_only_what_workers_come_from(num_workers: int) -> None:
    with testing.serve({}) as server, testing.check_leaks(within_s=2):
        threads, processes = threading.active_count(), children()
        recipe = al.from_urls(server.url_of("missing.tar"), index=None)
        loader = al.DataLoader(recipe, num_workers=num_workers)
        assert loader.state_dict()["epoch"] == 0
        assert server.counters.connections == 0
        assert threading.active_count() == threads
        assert len(children() - processes) <= bool(num_workers)
        del loader


def children() -> set[str]:
    """The processes that this one has started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_defaults_are_torchs() -> None:
    ours, theirs = al.DataLoader(numbers()), torch.utils.data.DataLoader(_Torch())
    for name in (
        "batch_size",
        "num_workers",
        "pin_memory",
        "drop_last",
        "timeout",
        "worker_init_fn",
        "generator",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory_device",
        "in_order",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert al.DataLoader(numbers(), num_workers=2).prefetch_factor == 2


class _Torch(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_batches_are_collated_by_torchs_rules_by_default() -> None:
    (batch, *_) = al.DataLoader(numbers(), 4)
    assert torch.equal(batch, torch.tensor([0, 1, 2, 3]))
    assert [batch.tolist() for batch in al.DataLoader(numbers(3))] == [[0], [1], [2]]


def test_single_samples_are_converted_and_not_collated() -> None:
    samples = list(al.DataLoader(numbers(3).map(lambda n: {"a": n, "b": torch.tensor(n).numpy()}), None))
    assert [(sample["a"], sample["b"]) for sample in samples] == [(n, torch.tensor(n)) for n in range(3)]


def test_an_iterator_is_its_own_iterator_and_cannot_be_pickled() -> None:
    batches = iter(al.DataLoader(numbers()))
    assert iter(batches) is batches and aiter(batches) is batches
    with pytest.raises(NotImplementedError, match="pickle the loader"):
        pickle.dumps(batches)
    batches.close()


async def test_one_iterator_serves_both_kinds_of_loop() -> None:
    batches = iter(al.DataLoader(numbers(6), 2, lanes=1))
    taken = [next(batches).tolist(), (await anext(batches)).tolist(), next(batches).tolist()]
    assert taken == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_iterating_draws_from_torchs_generator_what_torch_draws() -> None:
    def after(loader: Any) -> int:
        torch.manual_seed(7)
        iter(loader)
        return int(torch.randint(1 << 40, ()))

    assert after(al.DataLoader(numbers())) == after(torch.utils.data.DataLoader(_Torch()))


# --- statistics and progress ---


@pytest.mark.usefixtures("fork_server", "no_leaks")
@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_count_what_was_delivered(workers: int) -> None:
    loader = al.DataLoader(numbers(10).map(lambda n: torch.zeros(25)), 4, num_workers=workers, lanes=2)
    assert loader.statistics.batches == 0
    batches = iter(loader)
    next(batches)
    assert (loader.statistics.batches, loader.statistics.samples) == (1, 4)
    list(batches)
    statistics = loader.statistics
    assert (statistics.batches, statistics.samples, statistics.size_bytes) == (4, 10, 10 * 25 * 4)
    assert 0 <= statistics.wait_s <= statistics.elapsed_s
    assert 0 <= statistics.wait_share <= 1


def test_the_wait_is_the_consumers_and_not_its_own_work() -> None:
    def slow(number: int) -> int:
        time.sleep(0.02)
        return number

    waiting = al.DataLoader(numbers(10).map(slow), 1)
    list(waiting)
    assert waiting.statistics.wait_share > 0.5
    working = al.DataLoader(numbers(10), 1)
    for _ in working:
        time.sleep(0.05)  # more than a busy machine takes to begin
    assert working.statistics.wait_share < 0.5


class SlowToSend:
    """What takes a quarter of a second on its way to each worker."""

    def __call__(self, sample: Any) -> Any:
        return sample

    def __reduce__(self) -> Any:
        time.sleep(0.25)
        return SlowToSend, ()


@pytest.mark.usefixtures("fork_server", "no_leaks")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_does_nothing_has_waited_all_the_time(workers: int) -> None:
    loader = al.DataLoader(numbers().map(SlowToSend()), 4, num_workers=workers)
    began_s = time.perf_counter()
    for _ in loader:
        pass
    took_s = time.perf_counter() - began_s
    statistics = loader.statistics
    assert 0.8 < statistics.wait_share <= 1
    assert statistics.elapsed_s <= took_s
    assert statistics.wait_s > 0.2 or not workers
    time.sleep(0.05)
    assert statistics.elapsed_s <= took_s, "the time after the pass is not its own"


def test_a_loop_that_is_left_has_statistics_that_stand_still() -> None:
    loader = al.DataLoader(numbers(), 4)
    for _ in loader:
        break
    elapsed_s = loader.statistics.elapsed_s
    time.sleep(0.01)
    assert loader.statistics.elapsed_s == elapsed_s


def test_statistics_are_shown_with_what_one_wants_to_know() -> None:
    loader = al.DataLoader(numbers(), 4)
    list(loader)
    shown = repr(loader.statistics)
    assert shown.startswith("Statistics(batches=5, samples=20, size_bytes=160, elapsed_s=0."), shown
    assert "wait_share=" in shown and "network=Network(requests=0" in shown
    assert "started_s" not in shown and "bar" not in shown


@pytest.mark.usefixtures("fork_server")
def test_the_rates_of_a_progress_bar_agree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with testing.check_leaks():
        list(al.DataLoader(numbers(400).map(SlowToSend()), 2, num_workers=2, progress=True))
    shown = capsys.readouterr().err.rpartition("\r")[2]
    rates = re.search(r"200 batches \[.*?([\d.]+) batches/s, ([\d,]+) samples/s", shown)
    assert rates is not None, shown
    assert int(rates[2].replace(",", "")) == pytest.approx(2 * float(rates[1]), rel=0.3)


def test_a_progress_bar_shows_batches_samples_bytes_and_the_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with testing.check_leaks():
        loader = al.DataLoader(numbers(), 2, progress=True)
        loader.set_epoch(4)
        assert len(list(loader)) == 10
    shown = capsys.readouterr().err
    assert "epoch 4: 10 batches" in shown
    assert "samples/s" in shown and "MB/s" in shown and "waited" in shown
    assert "tokens/s" not in shown, "nobody counts them"
    list(al.DataLoader(numbers(), batching=al.TokenBatches(length=int, max_tokens=20), progress=True))
    assert re.search(r"samples/s, [1-9][\d,]* tokens/s, ", capsys.readouterr().err)


def test_a_progress_bar_names_what_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def slow(number: int) -> int:
        time.sleep(0.03)
        return number

    list(al.DataLoader(numbers(30).map(slow), 1, progress=True))
    shown = capsys.readouterr().err.split("\r")
    assert sum(bool(re.search(r"waits \d+%: map\(.*slow\)", each)) for each in shown) > 2, shown
    assert re.search(r"waited \d+%: map\(.*slow\)", shown[-1])
    for _ in al.DataLoader(numbers(), 4, progress=True):
        time.sleep(0.05)
    assert re.search(r"waited \d+%\]", capsys.readouterr().err), "the training loop is no news"


class Broken(io.StringIO):
    """A stream that breaks after some writes, as a pipe whose reader has gone."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.mark.parametrize("writes", [0, 1, 4])
def test_a_progress_bar_that_cannot_be_written_is_switched_off_and_loses_no_batch(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Broken(writes))
    loader = al.DataLoader(numbers(), 2, progress=True)
    got, left = [], []
    with testing.check_leaks(), pytest.warns(UserWarning, match="switched off: BrokenPipeError"):
        for batch in loader:
            got.append(batch.tolist())
            other = al.DataLoader(numbers(), 2)
            other.load_state_dict(loader.state_dict())
            left.append(len(list(other)))
            time.sleep(0.12)  # longer than the bar waits before it is drawn anew
    assert got == [[n, n + 1] for n in range(0, 20, 2)]
    assert left == list(range(9, -1, -1))


def test_without_progress_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    list(al.DataLoader(numbers(), 2))
    assert capsys.readouterr() == ("", "")


# --- reading ahead ---


def test_without_workers_batches_are_made_while_the_consumer_computes() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    batches = iter(al.DataLoader(numbers(1000).map(make), 1))
    next(batches)
    until(lambda: len(made) > 1)
    time.sleep(0.05)
    assert len(made) <= 64, "some, within one piece of samples, and not all"
    batches.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetch_factor_batches_are_made_ahead_with_workers_and_without(
    prefetch: int, workers: int, fork_server: ForkServer, tmp_path: Any
) -> None:
    def collate(samples: list[int]) -> list[int]:
        (tmp_path / str(samples[0])).touch()
        return samples

    loader = al.DataLoader(
        numbers(1000), 1, num_workers=workers, prefetch_factor=prefetch, collate_fn=collate, timeout=10
    )
    batches = iter(loader)
    next(batches)
    until(lambda: len(list(tmp_path.iterdir())) >= 1 + prefetch)
    time.sleep(0.1)
    assert len(list(tmp_path.iterdir())) == 1 + prefetch
    batches.close()


def test_samples_of_a_source_that_pauses_come_soon_however_quick_it_was() -> None:
    drawn = 0

    def bursts(topology: al.Topology) -> Iterator[int]:
        nonlocal drawn
        for number in topology.split(range(2_000 + 5 * 8)):
            if number >= 2_000 and number % 8 == 0:
                time.sleep(0.1)
            drawn += 1
            yield number

    lags = [drawn - received for received, _ in enumerate(al.DataLoader(al.from_iterable(bursts), None), 1)]
    assert max(lags[2_008:]) <= 16  # a burst, and what is made ahead


def test_back_pressure_reaches_the_socket(tmp_path: Any) -> None:
    with al.ShardWriter(tmp_path / "shard-%02d.tar", samples_per_shard=8) as writer:
        for index in range(64):
            writer.write({"__key__": str(index), "bin": bytes(1 << 20)})
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(f"shard-{number:02d}.tar") for number in range(8)]
        loader = al.DataLoader(al.from_urls(urls), 1, memory_limit=16 << 20)
        batches = iter(loader)
        next(batches)
        time.sleep(0.5)
        # What is in flight, and what kernel buffers on both sides of the sockets hold.
        assert server.counters.bytes_sent < 40 << 20
        batches.close()


# --- the context manager ---


@pytest.mark.usefixtures("fork_server", "no_leaks")
def test_a_loader_can_be_used_again_after_its_block(make_corpus: Callable[..., Corpus]) -> None:
    corpus = make_corpus("tar")
    loader = al.DataLoader(al.from_urls(corpus.paths), 4, num_workers=1)
    for _ in range(2):
        with loader:
            assert sorted(keys_of(loader)) == corpus.keys


def test_epochs_share_the_process_that_workers_come_from() -> None:
    with al.DataLoader(numbers(), 4, num_workers=1) as loader:
        list(loader)
        held = ForkServer.shared()
        pid = held.pid
        del held
        list(loader)
        assert ForkServer.shared().pid == pid


def test_pin_memory_without_an_accelerator_warns_as_torch_does_and_delivers_unpinned() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator"):
        batches = [batch.tolist() for batch in al.DataLoader(numbers(4), 2, pin_memory=True)]
    assert batches == [[0, 1], [2, 3]]


# --- subclasses ---


class Labelled(al.DataLoader[Any]):
    """A subclass of another signature, which sets attributes before its base is ready."""

    def __init__(self, label: str, dataset: Any, **options: Any) -> None:
        self.label = label
        self.shown_early = repr(self)
        super().__init__(dataset, **options)


@pytest.mark.parametrize("make", [lambda: range(20), numbers], ids=["map style", "stream"])
def test_a_subclass_may_have_any_signature(make: Callable[[], Any]) -> None:
    dataset = make()
    for loader in (Labelled("a", dataset, batch_size=8), Labelled("a", dataset=dataset, batch_size=8)):
        assert (loader.label, loader.dataset, loader.batch_size) == ("a", dataset, 8)
        assert [len(batch) for batch in loader] == [8, 8, 4]


@pytest.mark.usefixtures("fork_server")
def test_a_subclass_over_a_stream_resumes_is_copied_and_closes() -> None:
    with Labelled("a", numbers(), batch_size=4, num_workers=1, lanes=2) as loader:
        batches = iter(loader)
        first = [next(batches).tolist() for _ in range(2)]
        state = loader.state_dict()
        for twin in (copy.copy(loader), pickle.loads(cloudpickle.dumps(loader))):
            assert (type(twin), twin.label) == (Labelled, "a")
            twin.load_state_dict(state)
            rest = [batch.tolist() for batch in twin]
            assert sorted(chain(*first, *rest)) == list(range(20))


class Doubled(al.DataLoader[Any]):
    """A subclass that changes what comes out."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


async def test_both_kinds_of_loop_go_through_a_subclass_s_own_iterator() -> None:
    for dataset in (range(4), numbers(4)):
        loader = Doubled(dataset, 2)
        assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6]]
        assert [batch.tolist() async for batch in loader] == [[0, 2], [4, 6]]


def test_a_copy_stays_where_it_was_made() -> None:
    loader = al.DataLoader(numbers(), 4)
    twin = copy.copy(loader)
    next(iter(loader))
    assert len(list(twin)) == 5
    assert loader.state_dict()["ranks"] != twin.state_dict()["ranks"]


def test_a_misspelt_option_is_named_for_every_kind_of_dataset() -> None:
    for dataset in (range(4), numbers(4)):
        with pytest.raises(TypeError, match=r"DataLoader.__init__\(\) got .* argument 'num_wrokers'"):
            al.DataLoader(dataset, num_wrokers=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options", [{"device": "cpu"}, {"lanes": 1}, {"lanes": 0}, {"memory_limit": 1 << 30}, {"progress": True}]
)
def test_an_option_for_streams_is_refused_with_another_dataset(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"{name} can be given for streams only .* is a range"):
        al.DataLoader(range(4), **options)


# --- datasets of torch's kinds ---


@pytest.mark.parametrize(("workers", "keep"), [(0, False), (2, False), (2, True)])
def test_closing_ends_the_workers_of_torchs_loop(workers: int, keep: bool) -> None:
    with testing.check_leaks():
        with al.DataLoader(range(40), num_workers=workers, persistent_workers=keep) as loader:
            batches = iter(loader)
            next(batches)
            loader.close()
            assert not multiprocessing.active_children()
            assert len(list(loader)) == 40
            iter(loader)
        assert not multiprocessing.active_children()
        del batches, loader  # torch's own hold queues


def test_a_state_of_the_other_kind_is_refused() -> None:
    stream, mapped = al.DataLoader(numbers()), al.DataLoader(range(8))
    with pytest.raises(ValueError, match=r"over a range .*saved by a stream's loader"):
        mapped.load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="expected the state of a stream"):
        stream.load_state_dict(mapped.state_dict())


def test_an_epoch_is_told_to_the_sampler() -> None:
    sampler = torch.utils.data.DistributedSampler(range(8), 2, 0)  # type: ignore[arg-type]
    orders = []
    for epoch in (0, 1, 0):
        loader = al.DataLoader(range(8), 2, sampler=sampler)
        loader.set_epoch(epoch)
        orders.append([batch.tolist() for batch in loader])
    assert orders[0] == orders[2] != orders[1]


def test_a_loader_is_true_though_its_length_is_not_known() -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(int, 1)

    assert al.DataLoader(al.from_iterable([1]))
    assert al.DataLoader(Endless())
    assert al.DataLoader([1]) and not al.DataLoader([]), "as in torch"


# --- shown ---


def test_a_first_pass_over_several_ranks_tells_which_world_sizes_its_states_go_on_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "asyncloader.ranks")

    def told(**options: Any) -> list[str]:
        caplog.clear()
        loader = al.DataLoader(al.from_iterable(lambda topology: topology.split(range(24))), 2, **options)
        list(loader)
        list(loader)
        return [record.getMessage() for record in caplog.records if record.name == "asyncloader.ranks"]

    (line,) = told(rank=0, world_size=6)
    assert "6 lanes" in line and "a world size of 1, 2, 3, 6; for other world sizes, pass lanes=" in line
    assert not told(rank=1, world_size=6)
    assert not told(rank=0, world_size=6, lanes=12)
    assert not told()


def test_a_loader_shows_what_it_is_over_and_how_it_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = al.DataLoader(numbers().shuffle(10, seed=3), 8, num_workers=2, rank=1, world_size=2)
    assert repr(loader) == (
        "DataLoader(Dataset(Iterables(numbers.<locals>.<lambda>), shuffle(window=10, seed=3)), "
        "batch_size=8, num_workers=2, lanes=4, rank 1 of 2 (rank= and world_size=), seed=3)"
    )
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert "lanes=3, rank 2 of 3 (RANK and WORLD_SIZE))" in repr(al.DataLoader(numbers()))
    assert repr(al.DataLoader([1, 2, 3], 2)) == "DataLoader([1, 2, 3], batch_size=2, num_workers=0)"
    packed = repr(al.DataLoader(numbers(), batching=al.Pack("x", length=8)))
    assert "batch_size=None" not in packed
    assert packed.count("batching=Pack(fields='x', length=8, batch_size=1") == 1
    assert Labelled("a", numbers()).shown_early.startswith("<")
    assert repr(Labelled("a", numbers())).startswith("Labelled(Dataset(")


def test_what_a_loader_shows_is_one_short_line_without_secrets() -> None:
    for dataset in (list(range(1_000_000)), torch.zeros(100, 100), {"a": "x" * 10_000}):
        shown = repr(al.DataLoader(dataset))
        assert len(shown) < 300 and "\n" not in shown
    secret = al.DataLoader(al.from_urls("https://user:secret@host.test/a.tar?X-Amz-Signature=secret"))
    assert "host.test/a.tar" in repr(secret) and "secret" not in repr(secret)
