"""What is counted comes out of the libraries that collect it, for as long as there is a loader."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import asyncloader as al
from asyncloader.observe.metrics import METRICS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "statistics.md"


def read(loader: Any) -> Any:
    list(loader)
    return loader


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


def exported(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    data = reader.get_metrics_data()
    metrics = [
        metric
        for resource in (data.resource_metrics if data is not None else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    points = [(metric.name, point) for metric in metrics for point in metric.data.data_points]
    return {
        (name, str(dict(point.attributes or {}))): getattr(point, "value", None) for name, point in points
    }


@pytest.mark.parametrize("dataset", [range(12), al.from_iterable(range(12))])
def test_prometheus_scrapes_what_all_passes_come_to(dataset: Any) -> None:
    registry, loader = CollectorRegistry(), al.DataLoader(dataset, 4)
    before = threading.active_count()
    al.observe.Metrics(train=loader).to_prometheus(registry)
    assert threading.active_count() == before
    assert scraped(registry)['asyncloader_batches_total{loader="train"}'] == 0
    for passes in (1, 2):
        read(loader)
        found = scraped(registry)
        assert found['asyncloader_batches_total{loader="train"}'] == 3 * passes
        assert found['asyncloader_samples_total{loader="train"}'] == 12 * passes
        assert found['asyncloader_delivered_bytes_total{loader="train"}'] == 96 * passes
        assert found['asyncloader_passes{loader="train"}'] == passes
        assert found['asyncloader_running{loader="train"}'] == 0
        assert found['asyncloader_stage_duration_seconds_total{loader="train",stage="collate"}'] > 0
    totals = loader.statistics.totals()
    assert found['asyncloader_wait_duration_seconds_total{loader="train"}'] == totals.wait_s
    assert found['asyncloader_wait_share{loader="train"}'] == loader.statistics.wait_share
    assert [value for name, value in found.items() if name.startswith("asyncloader_limit{")].count(1) == 1


def test_a_series_that_was_scraped_stays_when_something_else_limits() -> None:
    def slowly(number: int) -> int:
        time.sleep(0.05)
        return number

    registry, loader = CollectorRegistry(), al.DataLoader(al.from_iterable(range(40)).map(slowly), 4)
    al.observe.Metrics(train=loader).to_prometheus(registry)
    before = scraped(registry)
    read(loader)
    after = scraped(registry)
    assert before.keys() <= after.keys()
    limits = {name: value for name, value in after.items() if name.startswith("asyncloader_limit{")}
    assert len(limits) > 1
    limiting = f'asyncloader_limit{{limit="{loader.report().limit}",loader="train"}}'
    assert limits == {**dict.fromkeys(limits, 0), limiting: 1}


def test_opentelemetry_exports_the_same() -> None:
    reader, loader = InMemoryMetricReader(), al.DataLoader(al.from_iterable(range(12)), 4)
    provider = MeterProvider([reader])
    al.observe.Metrics(train=loader).to_opentelemetry(provider)
    read(loader)
    found, name = exported(reader), str({"loader": "train"})
    assert found["asyncloader.batches", name] == 3
    assert found["asyncloader.requests", name] == 0
    assert found["asyncloader.pass.duration", name] == loader.statistics.elapsed_s
    assert found["asyncloader.stage.duration", str({"loader": "train", "stage": "collate"})] > 0
    provider.shutdown()


def test_a_loader_that_is_gone_is_told_of_no_more() -> None:
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    metrics, provider = al.observe.Metrics(), MeterProvider([reader])
    metrics.to_prometheus(registry)
    metrics.to_opentelemetry(provider)
    loaders = [read(al.DataLoader(range(8), 4)), read(al.DataLoader(al.from_iterable(range(8)), 2))]
    gone = [weakref.ref(loader) for loader in loaders]
    for number, loader in enumerate(loaders):
        metrics.add(f"number {number}", loader)
    del loader
    assert scraped(registry)['asyncloader_batches_total{loader="number 1"}'] == 4
    assert exported(reader)
    loaders.clear()
    gc.collect()
    assert [loader() for loader in gone] == [None, None]
    assert scraped(registry) == {} == exported(reader)
    provider.shutdown()


def test_a_name_is_of_one_loader() -> None:
    loader, other = al.DataLoader(range(8)), al.DataLoader(range(8))
    metrics = al.observe.Metrics(train=loader)
    metrics.add("train", loader)
    with pytest.raises(ValueError, match="another one is called 'train'"):
        metrics.add("train", other)


def test_without_the_library_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    metrics = al.observe.Metrics()
    with pytest.raises(ImportError, match=r"asyncloader\[metrics\]', or prometheus-client alone"):
        metrics.to_prometheus()
    with pytest.raises(ImportError, match=r"asyncloader\[metrics\]', or opentelemetry-api alone"):
        metrics.to_opentelemetry()


def test_the_page_names_every_metric() -> None:
    named = re.findall(r"^\| `(asyncloader\.[\w.]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    registry = CollectorRegistry()
    al.observe.Metrics(train=read(al.DataLoader(range(8)))).to_prometheus(registry)
    scrapable = {
        line.split()[2] for line in generate_latest(registry).decode().splitlines() if "TYPE" in line
    }
    assert [name for name, _ in named] == [metric.name for metric in METRICS]
    assert {name for _, name in named} == scrapable
