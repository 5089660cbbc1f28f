"""What loaders count, for OpenTelemetry and Prometheus: read only when those collect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from .report import Report
from .statistics import Statistics, Totals

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import CollectorRegistry

#: By the value of the metric's own label; of metrics without one, of the empty string.
Values: TypeAlias = Mapping[str, float]


class MeasuredLoader(Protocol):
    """A loader, as far as metrics need one."""

    @property
    def statistics(self) -> Statistics: ...

    def report(self) -> Report: ...


class Metric(NamedTuple):
    """Something that is measured of each loader.

    Attributes:
        name: For OpenTelemetry; Prometheus has underscores, the unit, and ``_total`` of counters.
        kind: A counter never becomes less in a loader's life; a gauge is of its latest pass.
        unit: As OpenTelemetry writes units.
        about: One line.
        read: Returns its values.
        label: What distinguishes several values of one loader.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    about: str
    read: Callable[[MeasuredLoader], Values]
    label: str = ""


def _total(name: str, unit: str, about: str, read: Callable[[Totals], float]) -> Metric:
    return Metric(name, "counter", unit, about, lambda loader: {"": read(loader.statistics.totals())})


def _latest(name: str, unit: str, about: str, read: Callable[[Statistics], float]) -> Metric:
    return Metric(name, "gauge", unit, about, lambda loader: {"": read(loader.statistics)})


# A series that is no longer reported keeps its last value for minutes, beside the one that takes its place.
_limits_seen: WeakKeyDictionary[MeasuredLoader, frozenset[str]] = WeakKeyDictionary()


def _limits(loader: MeasuredLoader) -> Values:
    limit = loader.report().limit
    seen = _limits_seen[loader] = _limits_seen.get(loader, frozenset()) | {limit}
    return {each: float(each == limit) for each in sorted(seen)}


#: All metrics.
METRICS = (
    _total("asyncloader.batches", "{batch}", "Batches delivered.", lambda all: all.batches),
    _total("asyncloader.samples", "{sample}", "Samples delivered.", lambda all: all.samples),
    _total("asyncloader.tokens", "{token}", "Tokens delivered, if counted.", lambda all: all.tokens),
    _total("asyncloader.delivered", "By", "Bytes of data delivered.", lambda all: all.size_bytes),
    _total("asyncloader.pass.duration", "s", "Duration of passes.", lambda all: all.elapsed_s),
    _total("asyncloader.wait.duration", "s", "Time that the training loop waited.", lambda all: all.wait_s),
    _total("asyncloader.requests", "{request}", "Requests sent.", lambda all: all.network.requests),
    _total("asyncloader.retries", "{request}", "Requests sent again.", lambda all: all.network.retries),
    _total("asyncloader.throttled", "{request}", "Answers 429 or 503.", lambda all: all.network.throttled),
    _total("asyncloader.hedges", "{request}", "Slow requests sent twice.", lambda all: all.network.hedges),
    _total("asyncloader.worker.restarts", "{worker}", "Workers replaced.", lambda all: all.worker_restarts),
    Metric(
        "asyncloader.stage.duration",
        "counter",
        "s",
        "Time spent on making batches, by stage.",
        lambda loader: loader.statistics.totals().stages_s,
        "stage",
    ),
    _latest("asyncloader.passes", "{pass}", "Passes begun.", lambda latest: latest.passes),
    _latest("asyncloader.running", "1", "Whether a pass runs.", lambda latest: latest.state == "running"),
    _latest("asyncloader.skipped", "{sample}", "Samples and shards skipped.", lambda latest: latest.skipped),
    _latest("asyncloader.wait.share", "1", "Share of time the loop waits.", lambda now: now.wait_share),
    Metric(
        "asyncloader.limit",
        "gauge",
        "1",
        "1 for the present bottleneck, 0 for earlier ones.",
        _limits,
        "limit",
    ),
)


class Metrics:
    """Export the counts of loaders to Prometheus or OpenTelemetry.

    For example: ``Metrics(train=loader).to_prometheus()``. The libraries read the counts when they collect;
    this object runs no thread. It does not keep a loader alive, and a loader that no longer exists is not
    reported.

    Args:
        loaders: Loaders by name, which becomes the label ``loader``.
    """

    def __init__(self, **loaders: MeasuredLoader) -> None:
        self._loaders = WeakValueDictionary[str, MeasuredLoader](loaders)

    def add(self, name: str, loader: MeasuredLoader) -> None:
        """Add a loader.

        Args:
            name: A new name, which becomes the label ``loader``.
            loader: A ``DataLoader``.

        Raises:
            ValueError: Another loader has that name.
        """
        if self._loaders.get(name, loader) is not loader:
            raise ValueError(f"expected a new name for each loader, but another one is called {name!r}")
        self._loaders[name] = loader

    def to_prometheus(self, registry: CollectorRegistry | None = None) -> None:
        """Register with ``prometheus_client``. A registry takes one ``Metrics``, with all loaders.

        Args:
            registry: The registry. None: ``prometheus_client.REGISTRY``.

        Raises:
            ImportError: ``prometheus_client`` is not installed.
            ValueError: Another ``Metrics`` is registered there.
        """
        try:
            import prometheus_client
        except ImportError as error:
            raise ImportError(_INSTALL.format("prometheus-client")) from error
        (registry or prometheus_client.REGISTRY).register(self)

    def to_opentelemetry(self, provider: MeterProvider | None = None) -> None:
        """Create an instrument for each metric, which OpenTelemetry reads when it exports.

        Args:
            provider: The meter provider. None: that of ``opentelemetry.metrics.set_meter_provider``.

        Raises:
            ImportError: ``opentelemetry`` is not installed.
        """
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ImportError(_INSTALL.format("opentelemetry-api")) from error
        meter = metrics.get_meter("asyncloader", meter_provider=provider)
        for metric in METRICS:
            make: Any = getattr(meter, f"create_observable_{metric.kind}")
            make(metric.name, [partial(self._observe, metric)], metric.unit, metric.about)

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its values for all loaders. Prometheus calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for metric in METRICS:
            labels = ["loader", metric.label] if metric.label else ["loader"]
            prometheus_name = metric.name.replace(".", "_") + _SUFFIXES.get(metric.unit, "")
            family: Any = families[metric.kind](prometheus_name, metric.about, labels=labels)
            for name, label, value in self._read(metric):
                family.add_metric([name, label] if metric.label else [name], value)
            yield family

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        for name, label, value in self._read(metric):
            yield Observation(value, {"loader": name, **({metric.label: label} if metric.label else {})})

    def _read(self, metric: Metric) -> Iterator[tuple[str, str, float]]:
        for name, loader in sorted(self._loaders.items()):
            for label, value in metric.read(loader).items():
                yield name, label, float(value)


_INSTALL = "expected {0} to be installed, and it is not: pip install 'asyncloader[metrics]', or {0} alone"

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}
